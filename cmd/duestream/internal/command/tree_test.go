package command_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/command"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/tools"
)

// newRoot returns the root command as a run of the program builds it.
func newRoot() *cobra.Command {
	a := &cli.App{}
	return command.Root(a)
}

// tree returns all commands, including those of cobra.
func tree() []*cobra.Command {
	root := newRoot()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	return tools.AllCommands(root)
}

// ofCobra reports whether a command comes from cobra.
func ofCobra(cmd *cobra.Command) bool {
	return strings.HasPrefix(cmd.CommandPath(), "duestream completion") || cmd.CommandPath() == "duestream help"
}

// Every command has a short text and an example. Each command line of an example is parsed, without the parts that
// belong to the shell (pipes, redirections, quotes), and must call this command or one below it.
func TestEveryCommandHasAnExampleThatItsParserTakes(t *testing.T) {
	t.Parallel()
	for _, cmd := range tree() {
		if ofCobra(cmd) {
			continue
		}
		if cmd.Short == "" || cmd.Example == "" {
			t.Errorf("%s has no short text, or no example", cmd.CommandPath())
		}
		if !strings.HasPrefix(cmd.Example, "  ") {
			t.Errorf("the example of %s is not indented like those of the others", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			_, line, found := strings.Cut(strings.TrimSpace(line), "duestream ")
			if !found || strings.HasPrefix(line, "#") { // a comment, or no command line of ours
				continue
			}
			line, _, _ = strings.Cut(line, " | ")
			line, _, _ = strings.Cut(line, " >")
			line, _, _ = strings.Cut(line, " <")
			root := newRoot()
			words := strings.Fields(strings.ReplaceAll(line, "'", ""))
			target, rest, err := root.Find(words)
			if err == nil {
				err = target.ParseFlags(rest)
			}
			if err == nil {
				err = target.ValidateArgs(target.Flags().Args())
			}
			if err != nil || !strings.HasPrefix(target.CommandPath(), cmd.CommandPath()) {
				t.Errorf("example of %s: %q: %v", cmd.CommandPath(), line, err)
			}
		}
	}
}

// withoutJSON holds the commands without --json, with the reason.
var withoutJSON = map[string]string{
	"duestream":                       "prints help",
	"duestream serve":                 "prints nothing; its log is JSON",
	"duestream dev":                   "for people to watch",
	"duestream work":                  "prints the output of the commands that it runs",
	"duestream man":                   "prints a manual page",
	"duestream queue":                 "prints help",
	"duestream functions":             "prints help",
	"duestream functions dump":        "prints Lua",
	"duestream export":                "prints lines of JSON",
	"duestream dead":                  "prints help",
	"duestream bulk":                  "prints help",
	"duestream act":                   "prints help",
	"duestream recur":                 "prints help",
	"duestream push":                  "prints help",
	"duestream token":                 "prints help",
	"duestream migrate":               "prints help",
	"duestream push run":              "prints nothing but its log",
	"duestream gateway":               "prints a token at the first start, and else nothing but its log",
	"duestream help":                  "prints help",
	"duestream completion":            "prints help",
	"duestream completion bash":       "prints a script",
	"duestream completion zsh":        "prints a script",
	"duestream completion fish":       "prints a script",
	"duestream completion powershell": "prints a script",
}

// Every command has --json, except those in withoutJSON. A new command must have the flag or be listed with a reason.
func TestEveryCommandThatPrintsDataHasJSON(t *testing.T) {
	t.Parallel()
	all := map[string]bool{}
	for _, cmd := range tree() {
		name := cmd.CommandPath()
		all[name] = true
		has, exempt := cmd.Flags().Lookup("json") != nil, withoutJSON[name] != ""
		if has == exempt {
			t.Errorf("%s: --json %t, but listed as without it: %t", name, has, exempt)
		}
	}
	for name := range withoutJSON {
		if !all[name] {
			t.Errorf("%s is listed, and does not exist", name)
		}
	}
}

// plainText returns a manual page without the marks of troff.
func plainText(page string) string {
	for _, pair := range [][2]string{{`\&.`, "."}, {`\fB`, ""}, {`\fI`, ""}, {`\fP`, ""}, {`\\`, `\`}} {
		page = strings.ReplaceAll(page, pair[0], pair[1])
	}
	return regexp.MustCompile(`\\\[u([0-9A-F]{4})\]`).ReplaceAllStringFunc(page, func(s string) string {
		n, _ := strconv.ParseInt(s[3:7], 16, 32)
		return string(rune(n))
	})
}

// The manual, as one page and as one page per command, has every command, flag, example, exit code and environment
// variable.
func TestManualIsComplete(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "man1")
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	raw := c.OK("man")
	c.OK("man", "--dir", dir)
	whole := plainText(raw)
	// has checks that a page of the manual, that of command what, contains text.
	has := func(what, text, page string) {
		if !strings.Contains(page, text) {
			t.Errorf("%s is not in the manual of %s", text, what)
		}
	}
	for _, cmd := range tree() {
		file := filepath.Join(dir, tools.ManualName(cmd)+".1")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			continue
		}
		own := plainText(string(text))
		for _, page := range []string{whole, own} {
			if cmd.HasParent() {
				has(cmd.CommandPath(), cmd.UseLine(), page)
			}
			for line := range strings.Lines(cmd.Example) {
				has(cmd.CommandPath(), strings.TrimSpace(line), page)
			}
			cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { has(cmd.CommandPath(), "--"+f.Name, page) })
		}
		if cmd.HasParent() {
			has(cmd.CommandPath(), cmd.Short, own)
		}
		wantsCleanTroff(t, file, string(text))
	}
	wantsCleanTroff(t, "duestream.1", raw)
	settings.Each(func(name, _, _, meaning string) { has("duestream", name, whole); has("duestream", meaning, whole) })
	for line := range strings.Lines(exit.Help) {
		if code, meaning, ok := strings.Cut(strings.TrimSpace(line), "  "); ok {
			has("duestream", code+"  ", whole)
			has("duestream", strings.TrimSpace(meaning), whole)
		}
	}
	c.Fails(exit.Failure, []string{"not a directory"}, "man", "--dir", plainFile(t)+"/man")
}

// plainFile creates an empty file, and returns its name to be passed where a directory is expected.
func plainFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// wantsCleanTroff fails the test if a line of the page begins with a troff request that the generator does not write.
// Where groff is installed, it also fails if groff prints a warning.
func wantsCleanTroff(t *testing.T, name, page string) {
	t.Helper()
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") &&
			!regexp.MustCompile(`^\.(nh|TH|SH|TP|PP|EX|EE)\b`).MatchString(line) {
			t.Errorf("%s: %q means something to troff", name, line)
		}
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		return
	}
	cmd := exec.Command(groff, "-Tutf8", "-man", "-ww", "-z")
	cmd.Stdin = strings.NewReader(page)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%s: %v\n%s", name, err, out)
	}
}
