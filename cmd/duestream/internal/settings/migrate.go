package settings

// MigrateFrom holds the variables that the commands below migrate read besides Connection.
type MigrateFrom struct {
	LmstfyRedisURL     string `split_words:"true" desc:"URL of the Redis of an lmstfy server, where its jobs are"`
	AsynqRedisURL      string `split_words:"true" desc:"URL of the Redis of asynq, where its tasks are"`
	DelayqueueRedisURL string `split_words:"true" desc:"URL of the Redis of delayqueue, where its messages are"`
	BullmqRedisURL     string `split_words:"true" desc:"URL of the Redis of BullMQ, where its jobs are"`
}
