"""What tests of agents need: scripted models, a clock that stands still, faults on demand, contracts."""
