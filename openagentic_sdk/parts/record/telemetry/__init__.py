"""Sessions as OpenTelemetry traces, sent to a collector while they run or, after an outage, from their logs."""
