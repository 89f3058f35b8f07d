"""Sessions as OpenTelemetry traces, sent to a collector while they run and, after an outage, from their logs."""
