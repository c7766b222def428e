package bridge

import (
	"context"
	"errors"

	"github.com/duestream/duestream/lua"
)

var errServiceGoexit = errors.New("run: a service ended its goroutine")

// Run runs the services of a program at the same time, until ctx is cancelled or one of them returns, even without an
// error. Then it stops them one after another, in their order: it cancels the context of a service when the service
// before it has returned. It returns the errors of all services. So put senders before receivers, and the bridge last:
//
//	err := bridge.Run(ctx, serveHTTP, worker.Run, relay.Run, b.Run)
//
// The context of a service has the values of ctx, but no deadline. A service that does not return when its context is
// cancelled keeps the later ones running. If a service is nil, Run returns ErrInvalid and starts none.
func Run(ctx context.Context, services ...func(context.Context) error) error {
	for _, service := range services {
		if err := lua.Faults("run", lua.Required("service", service != nil)); err != nil {
			return err
		}
	}
	ctx, oneReturned := context.WithCancel(ctx)
	defer oneReturned()
	type running struct {
		stop     context.CancelFunc
		returned chan error
	}
	all := make([]running, len(services))
	for i, service := range services {
		own, stop := context.WithCancel(context.WithoutCancel(ctx))
		all[i] = running{stop, make(chan error, 1)}
		go func() {
			err := errServiceGoexit
			defer func() { // deferred, because nothing else runs after runtime.Goexit
				all[i].returned <- err
				oneReturned()
			}()
			err = service(own)
		}()
	}
	if len(all) > 0 {
		<-ctx.Done()
	}
	var errs []error
	for _, one := range all {
		one.stop()
		errs = append(errs, <-one.returned)
	}
	return errors.Join(errs...)
}
