package redistest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/integration/redistest/wire"
)

const pullRetry = 10 * time.Minute // after a failed pull, other test processes wait this long before they try again

// Images are the server images that [Each] looks for, with the preferred one first. All are optional.
// docs/operations/deploy.md describes how they differ.
func Images() []string {
	return []string{"redis:7.0", "redis:8.0", "valkey/valkey:8.1", "valkey/valkey:9.1", "redis:8.6", "valkey/valkey:8.0"}
}

// engine returns nil if there is a local Docker engine, and otherwise an error that says why not.
func engine() error {
	_, err := ask(wire.Request{Op: wire.Engine})
	return err
}

// hasImage reports whether a local engine has an image.
func hasImage(image string) bool {
	there, err := ask(wire.Request{Op: wire.Has, Subject: image})
	return err == nil && there != ""
}

// chooseImage returns an image that the local engine has. If one is preferred, it is that one, which is pulled if it is
// missing. If preferred is empty, it is the first of [Images] that the engine has, or else the first one, pulled.
func chooseImage(preferred string) (string, error) {
	if err := engine(); err != nil {
		return preferred, err
	}
	if preferred != "" {
		if hasImage(preferred) {
			return preferred, nil
		}
		return preferred, pull(preferred)
	}
	for _, image := range Images() {
		if hasImage(image) {
			return image, nil
		}
	}
	image := Images()[0]
	return image, pull(image)
}

// pull fetches an image within a minute. Only one test process pulls at a time. After a failure, none of them tries
// again for some minutes (pullRetry), so that on a machine without a registry not every package waits for the timeout.
func pull(image string) error {
	return withMachineLock(func() error {
		if hasImage(image) {
			return nil
		}
		failed := machineFile("no-" + sanitised(image))
		if st, err := os.Stat(failed); err == nil && time.Since(st.ModTime()) < pullRetry {
			return fmt.Errorf("image %s is not there and could not be pulled at %s; that is tried again %v later or when %s is "+
				"removed",
				image, st.ModTime().Format(time.TimeOnly), pullRetry, failed)
		}
		if _, err := ask(wire.Request{Op: wire.Pull, Subject: image}); err != nil {
			_ = os.WriteFile(failed, []byte(err.Error()), 0o600) // it only saves time
			return fmt.Errorf("pull %s: %w", image, err)
		}
		return nil
	})
}

// ownerLabel names this test process.
func ownerLabel() string {
	host, _ := os.Hostname()
	return host + "/" + strconv.Itoa(os.Getpid())
}

// shortName is the image without its account, because -run would split a subtest's name at a slash.
func shortName(image string) string { return image[strings.LastIndex(image, "/")+1:] }
