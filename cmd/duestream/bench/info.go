package bench

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/redis/rueidis"
)

// info returns the numbers in a section of INFO, from the server that holds the queue. It returns none if INFO is
// refused.
func (r *rig) info(ctx context.Context, section string) (map[string]float64, error) {
	return numbers(r.c.Do(ctx, r.c.B().Info().Section(section).Build().SetSlot(r.keys.Due)))
}

func numbers(reply rueidis.RedisResult) (map[string]float64, error) {
	text, err := reply.ToString()
	if _, refused := rueidis.IsRedisErr(err); refused {
		return nil, nil
	}
	if err != nil {
		return nil, lua.Classify("INFO", err)
	}
	values := map[string]float64{}
	for line := range strings.SplitSeq(text, "\r\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",") // in a line of commandstats
			if n, err := strconv.ParseFloat(calls, 64); err == nil {
				values[name] = n
			}
		}
	}
	return values, nil
}

// cost is the work of the server that holds the queue.
type cost struct {
	took     time.Duration
	cpu      float64 // µs of the server's main thread, or of all threads if it does not report its main thread
	commands float64 // commands in scripts and of clients, without the calls of scripts
}

// spent measures the server's work while do runs. It returns nil if the server does not report it.
func (r *rig) spent(ctx context.Context, do func() error) (*cost, error) {
	commandsBefore, err := r.commands(ctx)
	if err != nil {
		return nil, err
	}
	cpuBefore, err := r.cpuTime(ctx)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := do(); err != nil {
		return nil, err
	}
	c := &cost{took: time.Since(begin)}
	if c.cpu, err = r.cpuTime(ctx); err != nil || c.cpu == 0 {
		return nil, err
	}
	c.cpu -= cpuBefore
	c.commands, err = r.commands(ctx)
	c.commands -= commandsBefore
	return c, err
}

// cpuTime returns the CPU time that the server has used, in µs; 0 if it does not report it.
func (r *rig) cpuTime(ctx context.Context) (float64, error) {
	cpu, err := r.info(ctx, "cpu")
	if main := cpu["used_cpu_sys_main_thread"] + cpu["used_cpu_user_main_thread"]; main > 0 {
		return 1e6 * main, err
	}
	return 1e6 * (cpu["used_cpu_sys"] + cpu["used_cpu_user"]), err
}

// commands returns the number of commands that the server has executed, without calls of scripts and INFO.
func (r *rig) commands(ctx context.Context) (total float64, err error) {
	stats, err := r.info(ctx, "commandstats")
	for name, calls := range stats {
		switch name {
		case "cmdstat_eval", "cmdstat_evalsha", "cmdstat_eval_ro", "cmdstat_evalsha_ro", "cmdstat_info":
		default:
			total += calls
		}
	}
	return total, err
}
