// Command mutants removes guards from duestream, one at a time, in a copy of the source tree, and checks whether the
// tests notice. A test that cannot fail proves nothing. It prints a table, and its exit status is 1 when a mutant
// survives.
//
//	go run ./integration/mutants                 run all of them, each against the tests in its row
//	go run ./integration/mutants -only guard     run those whose name contains the word
//	go run ./integration/mutants -list           list them
//
// It needs the same programs as the tests, and takes some minutes.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() { os.Exit(run()) }

func run() int {
	only := flag.String("only", "", "run only the mutants whose name contains this")
	list := flag.Bool("list", false, "list the mutants and end")
	verbose := flag.Bool("v", false, "print what the tests said")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root, err := moduleRoot(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		return 2
	}
	survivors := 0
	if !*list {
		fmt.Println("| guard taken out | test | caught | after | what it said |")
		fmt.Println("|---|---|---|---|---|")
	}
	for _, m := range allMutants() {
		switch {
		case !strings.Contains(m.name, *only):
		case *list:
			fmt.Printf("%-40s %s: go test %s\n", m.name, m.file, strings.Join(m.test, " "))
		case ctx.Err() != nil:
			return 130
		default:
			begin := time.Now()
			said, caught, err := m.try(ctx, root)
			if err != nil {
				fmt.Fprintf(os.Stderr, "mutants: %s: %v\n", m.name, err)
				return 2
			}
			if !caught {
				survivors++
			}
			fmt.Printf("| %s | `go test %s` | %s | %.0f s | %s |\n", m.name, strings.Join(m.test, " "),
				map[bool]string{true: "yes", false: "NO"}[caught],
				time.Since(begin).Seconds(), complaint(said))
			if *verbose {
				fmt.Fprintf(os.Stderr, "%s\n", said)
			}
		}
	}
	if survivors > 0 {
		fmt.Fprintf(os.Stderr, "mutants: %d survived\n", survivors)
		return 1
	}
	return 0
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	return strings.TrimSpace(string(out)), err
}

// mutant is one removed guard. In file, the text old becomes new; old must be there exactly as many times as changes
// says, or once if that is zero. test are the arguments of the go test run that should then fail.
type mutant struct {
	name, file string
	old, new   string
	changes    int
	test       []string
}

// try runs the mutant's tests in a copy of the tree. The mutant is caught if the tests fail. An error means that the
// copy does not build, or that no test ran.
func (m mutant) try(ctx context.Context, root string) (said []byte, caught bool, err error) {
	dir, err := os.MkdirTemp("", "duestream-mutant-")
	if err != nil {
		return nil, false, err
	}
	defer os.RemoveAll(dir)
	if err := copyTree(dir, root); err != nil {
		return nil, false, err
	}
	if err := m.apply(dir); err != nil {
		return nil, false, err
	}
	generate := exec.CommandContext(ctx, "go", "generate", "./lua") // what runs follows from the scripts
	generate.Dir = dir
	if out, err := generate.CombinedOutput(); err != nil {
		return nil, false, fmt.Errorf("the mutant's scripts cannot be generated: %w\n%s", err, out)
	}
	build := exec.CommandContext(ctx, "go", "vet", "./lua", "./internal/...", "./scheduler/...", "./stream/...", "./bridge/...")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		return nil, false, fmt.Errorf("the mutant does not build: %w\n%s", err, out)
	}
	test := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "-timeout=10m"}, m.test...)...)
	test.Dir = dir
	said, err = test.CombinedOutput()
	if bytes.Contains(said, []byte("no tests to run")) || bytes.Contains(said, []byte("build failed")) {
		return said, false, fmt.Errorf("no test was run:\n%s", said)
	}
	return said, err != nil && ctx.Err() == nil, nil
}

func (m mutant) apply(dir string) error {
	path := filepath.Join(dir, filepath.FromSlash(m.file))
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if n := strings.Count(string(text), m.old); n != max(1, m.changes) {
		return fmt.Errorf("%s holds the text to change %d times; it was edited, so edit the mutant, too: %q", m.file, n, m.old)
	}
	return os.WriteFile(path, []byte(strings.ReplaceAll(string(text), m.old, m.new)), 0o644)
}

// copyTree copies all files except those of git and the built ones.
func copyTree(to, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (rel == ".git" || rel == "bin"):
			return filepath.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), text, info.Mode().Perm())
	})
}

// complaint returns the first failure that a test reported, for a cell of the table. For a campaign, it returns the
// columns that should be zero.
func complaint(said []byte) string {
	for line := range strings.Lines(string(said)) {
		_, text, ok := strings.Cut(line, ".go:")
		if !ok {
			continue
		}
		if _, text, ok = strings.Cut(text, ": "); !ok || strings.HasPrefix(text, "seed ") ||
			strings.Contains(text, " faults of ") {
			continue
		}
		if _, sums, ok := strings.Cut(text, "duplicates_explained="); ok {
			sums, _, _ = strings.Cut(sums, " faults=")
			text = strings.Join(slices.DeleteFunc(strings.Fields(sums)[1:],
				func(sum string) bool { return strings.HasSuffix(sum, "=0") }), ", ")
		}
		if len(text) > 120 {
			text = strings.ToValidUTF8(text[:120], "") + "…"
		}
		return strings.ReplaceAll(strings.TrimSpace(text), "|", "/")
	}
	return ""
}

// allMutants returns the rows of all tables.
func allMutants() []mutant {
	return slices.Concat(mutants, moreMutants, producingMutants, historyMutants, retriesMutants, handlerMutants, tracingMutants,
		metricsMutants, healthMutants, flowMutants, recurrenceMutants, turnsMutants, keyMutants, pushMutants,
		gatewayMutants, runningMutants)
}
