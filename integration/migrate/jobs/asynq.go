package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
)

// Types of tasks, by what their handler does.
const (
	typeFail    = "mail:fail"
	typeArchive = "mail:archive"
	typeDone    = "mail:done"
	typeHang    = "mail:hang"
	typeSend    = "mail:send" // no handler runs it here
)

// makeAsynq makes tasks: a tenth waits for a retry, a fiftieth each is archived and completed, ten are active, a fifth
// is pending, and the others are scheduled.
func makeAsynq(s settings) ([]made, error) {
	redis := asynq.RedisClientOpt{Addr: s.redis}
	client, inspector := asynq.NewClient(redis), asynq.NewInspector(redis)
	begin := time.Now()
	// A retry is due a while after its failure: until then, all other tasks must have failed once, on a slow machine
	// too.
	retryDelay := func(int, error, *asynq.Task) time.Duration {
		return time.Until(s.due(time.Now().Add(10 * time.Second)))
	}
	server := asynq.NewServer(redis, asynq.Config{
		Concurrency: 20, Queues: map[string]int{queue: 1}, TaskCheckInterval: 20 * time.Millisecond,
		LogLevel: asynq.FatalLevel, RetryDelayFunc: retryDelay,
	})
	err := server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		switch task.Type() {
		case typeFail:
			return errors.New("the mail server is away")
		case typeArchive:
			return fmt.Errorf("no such address: %w", asynq.SkipRetry)
		case typeHang:
			select {}
		}
		return nil
	}))
	if err != nil {
		return nil, err
	}
	enqueue := func(kind string, n int, options func(id string) []asynq.Option) error {
		return each(n, func(i int) error {
			id := fmt.Sprintf("%s-%06d", kind, i)
			task := asynq.NewTaskWithHeaders(kind, []byte("\x00payload of "+id), map[string]string{"tenant": "acme"})
			with := append([]asynq.Option{asynq.Queue(queue), asynq.TaskID(id)}, options(id)...)
			_, err := client.Enqueue(task, with...)
			return err
		})
	}
	none := func(string) []asynq.Option { return nil }
	failing, ending, hanging, waiting := s.jobs/10, s.jobs/50, min(10, s.jobs/10), s.jobs/5
	err = errors.Join(
		enqueue(typeFail, failing, none), enqueue(typeArchive, ending, none),
		enqueue(typeDone, ending, func(string) []asynq.Option { return []asynq.Option{asynq.Retention(time.Hour)} }))
	if err == nil {
		err = until("the tasks failed", func() (bool, error) {
			info, err := inspector.GetQueueInfo(queue)
			return err == nil && info.Retry == failing && info.Archived == ending && info.Completed == ending, err
		})
	}
	if err == nil {
		err = enqueue(typeHang, hanging, none)
	}
	if err == nil {
		err = until("the tasks are active", func() (bool, error) {
			info, err := inspector.GetQueueInfo(queue)
			return err == nil && info.Active == hanging, err
		})
	}
	if err != nil {
		return nil, err
	}
	server.Stop() // it takes no more tasks, and goes on with those that it has
	err = enqueue(typeSend+":now", waiting, func(string) []asynq.Option {
		return []asynq.Option{asynq.Unique(time.Hour), asynq.MaxRetry(3)}
	})
	if err == nil {
		err = enqueue(typeSend, s.jobs-failing-2*ending-hanging-waiting, func(string) []asynq.Option {
			return []asynq.Option{asynq.ProcessAt(s.due(begin)), asynq.Timeout(time.Minute)}
		})
	}
	if err != nil {
		return nil, err
	}
	return listAsynq(inspector)
}

// listAsynq lists all tasks as asynq's own inspector sees them.
func listAsynq(inspector *asynq.Inspector) (all []made, _ error) {
	const page = 1000
	for state, list := range map[string]func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		"pending": inspector.ListPendingTasks, "active": inspector.ListActiveTasks,
		"scheduled": inspector.ListScheduledTasks, "retry": inspector.ListRetryTasks,
		"archived": inspector.ListArchivedTasks, "completed": inspector.ListCompletedTasks,
	} {
		for n := 1; ; n++ {
			tasks, err := list(queue, asynq.PageSize(page), asynq.Page(n))
			if err != nil {
				return nil, err
			}
			for _, task := range tasks {
				job := made{ID: task.ID, Payload: string(task.Payload), State: state}
				if state == "scheduled" || state == "retry" {
					job.Due = task.NextProcessAt.UnixMilli()
				}
				all = append(all, job)
			}
			if len(tasks) < page {
				break
			}
		}
	}
	return all, nil
}
