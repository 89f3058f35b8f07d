"""Sessions as OpenTelemetry traces, sent while they run or, after an outage, from their logs; metrics as text."""
