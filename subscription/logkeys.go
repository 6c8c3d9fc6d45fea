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
	LogContent      = "content"
	LogLSN          = "lsn"
	LogGXID         = "gxid"
	LogError        = "error"
	LogState        = "state"
	LogAddress      = "address"
	LogEpoch        = "epoch"
	LogPID          = "pid"
)
