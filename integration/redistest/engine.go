package redistest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/integration/redistest/wire"
)

const pullRetry = 10 * time.Minute // after a failed pull, other test processes do not try again for so long

// Images are the server images that [Each] looks for, the preferred one first. All are optional; docs/OPERATIONS.md tells how
// they differ.
func Images() []string {
	return []string{"redis:7.0", "redis:8.0", "valkey/valkey:8.1", "valkey/valkey:9.1", "redis:8.6", "valkey/valkey:8.0"}
}

// engine says why there is no local Docker engine; nil when there is one.
func engine() error {
	_, err := ask(wire.Request{Op: wire.Engine})
	return err
}

// hasImage reports whether there is a local engine that has an image.
func hasImage(image string) bool {
	there, err := ask(wire.Request{Op: wire.Has, Subject: image})
	return err == nil && there != ""
}

// chooseImage returns the preferred image when it is there, else another one that is, else one that could be pulled.
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

// pull fetches an image within a minute. Test processes take turns, and a failure is remembered for all of them, so that a
// machine without a registry does not pay for it in every package.
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
			_ = os.WriteFile(failed, []byte(err.Error()), 0o600) // only saves time
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

// shortName is the image without its account, because a slash in a subtest's name would split it for -run.
func shortName(image string) string { return image[strings.LastIndex(image, "/")+1:] }
