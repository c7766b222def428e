// Command mutants changes the Lua scripts by rule, one line at a time, and checks whether the tests notice, because a
// test that cannot fail proves nothing. The command prints a table. Its exit status is 1 if a mutant survives that
// survivors.txt does not list.
//
//	go run ./integration/mutants                    20 mutants, drawn at random
//	go run ./integration/mutants -seed 7 -n 100     100 mutants; the same seed draws the same mutants
//	go run ./integration/mutants -only lib/free     all whose file or text contains the word
//	go run ./integration/mutants -n 0               all; takes hours
//	go run ./integration/mutants -list              list them
//
// The source tree is not changed: the go command compiles the changed scripts from an overlay.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing/fstest"
	"time"

	"github.com/duestream/duestream/internal/assemble"
)

// judges are the tests that should notice a mutant, the fastest first.
var judges = [][]string{
	{"./integration/model", "-failfast", "-rapid.checks=100", "-rapid.shrinktime=0s"},
	{"./lua", "-failfast"},
	{"./integration/crashpoint", "-failfast", "-run", "TestEveryScriptStepFails"},
	{"./stream/search", "-failfast"},
}

func main() { os.Exit(run()) }

func run() int {
	only := flag.String("only", "", "run only the mutants whose name contains this, all of them")
	number := flag.Int("n", 20, "run so many, drawn at random; 0 means all")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "seed of the draw")
	list := flag.Bool("list", false, "list the mutants and end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	all, err := mutantsOf(os.DirFS("lua"))
	if err != nil || len(all) == 0 {
		fmt.Fprintln(os.Stderr, "mutants: run this in the root of the module:", err)
		return 2
	}
	all = slices.DeleteFunc(all, func(m mutant) bool { return !strings.Contains(m.name(), *only) })
	if *list {
		for _, m := range all {
			fmt.Println(m)
		}
		return 0
	}
	if *only == "" && *number > 0 && *number < len(all) {
		fmt.Printf("seed %d\n\n", *seed)
		draw := rand.New(rand.NewPCG(*seed, 0))
		draw.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:*number]
	}
	return try(ctx, all)
}

// try runs the mutants and prints the table.
func try(ctx context.Context, mutants []mutant) int {
	known := survivors()
	survived := 0
	fmt.Println("| mutant | noticed by | after |")
	fmt.Println("|---|---|---|")
	for _, m := range mutants {
		begin := time.Now()
		judge, err := m.try(ctx)
		if ctx.Err() != nil {
			return 130
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "mutants: %s: %v\n", m, err)
			return 2
		}
		switch {
		case judge == "" && known[m.name()]:
			judge = "nobody, as known"
		case judge == "":
			judge = "NOBODY"
			survived++
		}
		name := strings.ReplaceAll(m.String(), "|", "¦")
		fmt.Printf("| `%s` | %s | %.0f s |\n", name, judge, time.Since(begin).Seconds())
	}
	if survived > 0 {
		fmt.Fprintf(os.Stderr, "mutants: %d survived\n", survived)
		return 1
	}
	return 0
}

// try runs the judges with the changed scripts, and returns the package of the first that fails; "" if none does.
func (m mutant) try(ctx context.Context) (judge string, err error) {
	dir, err := os.MkdirTemp("", "duestream-mutant-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(dir)
	if err != nil {
		return "", err
	}
	for _, judge := range judges {
		args := append([]string{"test", "-count=1", "-timeout=10m", "-overlay", overlay}, judge...)
		test := exec.CommandContext(ctx, "go", args...)
		test.Env = append(os.Environ(), "DUESTREAM_TEST_ONLY=shared")
		said, err := test.CombinedOutput()
		if bytes.Contains(said, []byte("no tests to run")) || bytes.Contains(said, []byte("build failed")) {
			return "", fmt.Errorf("no test was run:\n%s", said)
		}
		if err != nil {
			return judge[0], nil
		}
	}
	return "", nil
}

// overlay writes the generated scripts that the mutant changes to dir, and returns the name of a file that tells the
// go command to use them.
func (m mutant) overlay(dir string) (string, error) {
	sources := fstest.MapFS{}
	for _, pattern := range []string{"*.lua", "lib/*.lua", "functions/*.lua"} {
		paths, err := fs.Glob(os.DirFS("lua"), pattern)
		if err != nil {
			return "", err
		}
		for _, path := range paths {
			text, err := os.ReadFile(filepath.Join("lua", path))
			if err != nil {
				return "", err
			}
			sources[path] = &fstest.MapFile{Data: text}
		}
	}
	before, err := generated(sources)
	if err != nil {
		return "", err
	}
	text, err := m.apply(string(sources[m.file].Data))
	if err != nil {
		return "", err
	}
	sources[m.file] = &fstest.MapFile{Data: []byte(text)}
	after, err := generated(sources)
	if err != nil {
		return "", err
	}
	replaced := map[string]string{}
	for path, text := range after {
		if text == before[path] {
			continue
		}
		changed := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(changed, []byte(text), 0o644); err != nil {
			return "", err
		}
		original, err := filepath.Abs(filepath.Join("lua", path))
		if err != nil {
			return "", err
		}
		replaced[original] = changed
	}
	replacement, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, replacement, 0o644)
}

func generated(sources fs.FS) (map[string]string, error) {
	read, err := assemble.Read(sources)
	if err != nil {
		return nil, err
	}
	return read.Generated()
}

//go:embed survivors.txt
var survivorsFile string

// survivors returns the names of the mutants that no test can notice. survivors.txt says why.
func survivors() map[string]bool {
	known := map[string]bool{}
	for line := range strings.Lines(survivorsFile) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") {
			known[line] = true
		}
	}
	return known
}
