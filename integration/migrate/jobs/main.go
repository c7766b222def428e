// Command jobs makes jobs of another program with that program's own library, in every state that the library knows,
// and prints each as a line of JSON. Then it dies as a killed worker does, with jobs in flight.
//
//	go run . -redis 127.0.0.1:6390 -jobs 3000 asynq
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"
)

// queue is the queue in which the jobs are.
const queue = "mail"

// settings are the flags.
type settings struct {
	redis        string
	jobs         int
	lead, spread time.Duration
}

// made is a line of the output.
type made struct {
	ID      string `json:"id,omitempty"` // "" = the library does not tell it
	Payload string `json:"payload"`
	State   string `json:"state"`
	Due     int64  `json:"due_ms,omitempty"` // 0 = at once, or not known to the library
}

func main() {
	var s settings
	flag.StringVar(&s.redis, "redis", "", "host:port of the Redis")
	flag.IntVar(&s.jobs, "jobs", 3000, "number of jobs")
	flag.DurationVar(&s.lead, "lead", 10*time.Second, "time until the first scheduled job is due")
	flag.DurationVar(&s.spread, "spread", 5*time.Second, "time from the first due time to the last")
	flag.Parse()
	var all []made
	var err error
	switch flag.Arg(0) {
	case "asynq":
		all, err = makeAsynq(s)
	case "delayqueue":
		all, err = makeDelayqueue(s)
	default:
		err = fmt.Errorf("%q: give asynq or delayqueue", flag.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	out := json.NewEncoder(os.Stdout)
	for _, job := range all {
		if err := out.Encode(job); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(0) // without stopping the workers, which hold jobs
}

// due returns a due time at random, in whole seconds.
func (s settings) due(begin time.Time) time.Time {
	return begin.Add(s.lead + rand.N(s.spread)).Truncate(time.Second)
}

// each calls do for 0 to n-1, eight calls at a time, and returns one of the errors.
func each(n int, do func(i int) error) (first error) {
	var wait sync.WaitGroup
	var mu sync.Mutex
	next := 0
	for range 8 {
		wait.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				failed := first != nil
				mu.Unlock()
				if i >= n || failed {
					return
				}
				if err := do(i); err != nil {
					mu.Lock()
					first = err
					mu.Unlock()
				}
			}
		})
	}
	wait.Wait()
	return first
}

// until waits until a condition holds, for at most two minutes.
func until(what string, holds func() (bool, error)) error {
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok, err := holds(); ok || err != nil {
			return err
		}
	}
	return fmt.Errorf("waited two minutes until %s", what)
}
