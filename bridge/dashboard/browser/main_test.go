package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) {
	redistest.SideBySide(3) // the tests wait for updates of pages more than they compute
	code := redistest.Run(m)
	printWeights()
	os.Exit(code)
}

// programs are the names of browsers that the tests can use.
var programs = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}

// chromium starts the browser that all tests share. It ends when the tests have ended.
var chromium = sync.OnceValues(func() (context.Context, error) {
	path := ""
	for _, name := range programs {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		return nil, fmt.Errorf("the tests of the dashboard need a browser, and none of %q is on the PATH: "+
			"apt-get install --no-install-recommends chromium; or run go test with -short, which leaves these tests out",
			programs)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path),
		chromedp.WSURLReadTimeout(actionTime),            // a start takes long on a busy machine
		chromedp.Flag("ignore-certificate-errors", true), // of the tests' own proxies
		chromedp.Flag("disable-gpu", true),
		chromedp.Flag("lang", "en-GB"))
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ := chromedp.NewContext(allocator)
	if err := chromedp.Run(ctx); err != nil {
		end()
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	redistest.AtExit(func() error {
		defer end()
		ending, stop := context.WithTimeout(ctx, time.Minute)
		defer stop()
		err := chromedp.Cancel(ending)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	})
	return ctx, nil
})
