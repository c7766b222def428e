package docs

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/duestream/duestream/integration/languages"
	"github.com/duestream/duestream/integration/redistest"
)

// TestStart runs the commands of docs/start.md beside `duestream dev`, as the page says. Transcripts have the form of
// TestGuides.
func TestStart(t *testing.T) {
	t.Parallel()
	duestream := languages.Build(t)
	dev := exec.Command(duestream, "dev", "--quiet")
	out, err := dev.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	redistest.Process(t, dev, os.Environ())
	var url string
	for scan := bufio.NewScanner(out); url == "" && scan.Scan(); {
		url = regexp.MustCompile(`redis://127\.0\.0\.1:\d+`).FindString(scan.Text())
	}
	if url == "" {
		t.Fatal("dev prints no URL")
	}
	const page = "docs/start.md"
	if n := len(fencedBlocks(t, page, "console")); n < 7 {
		t.Errorf("%d transcripts", n)
	}
	replayPage(t, page, url, append(os.Environ(), "DUESTREAM_REDIS_URL="+url,
		"PATH="+filepath.Dir(duestream)+":"+os.Getenv("PATH")))
}
