package settings

// MigrateFrom holds the variables that the commands below migrate read besides Connection, except migrate lmstfy.
type MigrateFrom struct {
	AsynqRedisURL      string `split_words:"true" desc:"URL of the Redis of asynq, where its tasks are"`
	DelayqueueRedisURL string `split_words:"true" desc:"URL of the Redis of delayqueue, where its messages are"`
	BullmqRedisURL     string `split_words:"true" desc:"URL of the Redis of BullMQ, where its jobs are"`
}
