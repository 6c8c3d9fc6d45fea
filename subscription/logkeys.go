package subscription

// Keys of log records.
const (
	LogSubscription = "subscription"
	LogBatch        = "batch"
	LogAttempt      = "attempt"
	LogDtxs         = "dtxs"
	LogRows         = "rows"
	LogLimit        = "limit"
	LogRelation     = "relation"
	LogError        = "error"
	LogAddress      = "address"
	LogEpoch        = "epoch"
	LogPID          = "pid"
)
