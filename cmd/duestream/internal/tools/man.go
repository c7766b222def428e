package tools

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
)

// Man returns the command man.
func Man(a *cli.App) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "man",
		Short: "Print the manual page",
		Long: `Prints the manual page duestream(1), with all commands, in the form that man(1) reads.
With --dir writes a page for every command, duestream-stats.1 and so on, beside it.`,
		Example: `  duestream man > /usr/local/share/man/man1/duestream.1
  duestream man --dir /usr/local/share/man/man1
  duestream man | man -l -`,
	}
	cmd.Flags().StringVar(&dir, "dir", "", "write one page per command into this directory, which is created")
	_ = cmd.MarkFlagDirname("dir")
	return a.WithRun(cmd, nil, func(context.Context, []string) error {
		if dir != "" {
			return writeManuals(dir, cmd.Root())
		}
		_, err := fmt.Fprint(a.Out, manual(cmd.Root()))
		return err
	})
}

func writeManuals(dir string, root *cobra.Command) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	pages := map[string]string{"duestream.1": manual(root)}
	for _, cmd := range AllCommands(root)[1:] {
		pages[ManName(cmd)+".1"] = commandManual(cmd)
	}
	for name, page := range pages {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(page), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// AllCommands returns a command and all visible commands below it.
func AllCommands(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() || sub.Name() == "help" {
			all = append(all, AllCommands(sub)...)
		}
	}
	return all
}

func ManName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// page is a manual page that is being written, in the macros of man(7).
type page struct{ strings.Builder }

// newPage writes the sections of a page up to the heading of the options.
func newPage(cmd *cobra.Command, synopsis string) *page {
	p := &page{}
	fmt.Fprintf(p, ".TH %s 1 \"\" \"duestream %s\" \"duestream\"\n", quoted(strings.ToUpper(ManName(cmd))),
		escape(cmd.Root().Version))
	p.section("NAME")
	fmt.Fprintf(p, "%s \\- %s\n", escape(ManName(cmd)), escape(cmd.Short))
	p.section("SYNOPSIS")
	p.WriteString(synopsis + "\n")
	p.section("DESCRIPTION")
	p.describe(cmd)
	p.section("OPTIONS")
	return p
}

func (p *page) section(name string) { fmt.Fprintf(p, ".SH %s\n", quoted(name)) }

// quoted quotes a text as an argument of a macro.
func quoted(text string) string {
	return `"` + strings.ReplaceAll(escape(text), `"`, `\(dq`) + `"`
}

// escape escapes all characters that mean something to troff.
func escape(text string) string {
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == '\\':
			b.WriteString(`\e`)
		case r == '-':
			b.WriteString(`\-`)
		case r == '^':
			b.WriteString(`\(ha`)
		case r == '~':
			b.WriteString(`\(ti`)
		case r == '`':
			b.WriteString(`\(ga`)
		case r == '\'':
			b.WriteString(`\(aq`)
		case r == '.' && (i == 0 || text[i-1] == '\n'):
			b.WriteString(`\&.`)
		case r > '~':
			fmt.Fprintf(&b, `\[u%04X]`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// text writes paragraphs, and leaves indented lines as they are.
func (p *page) text(text string) {
	verbatim, begun, blank := false, false, false
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		indented := strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "\t")
		switch {
		case strings.TrimSpace(line) == "":
			blank = true
			continue
		case indented && !verbatim:
			if blank {
				p.WriteString(".PP\n")
			}
			p.WriteString(".nf\n")
		case !indented && verbatim:
			p.WriteString(".fi\n.PP\n")
		case blank && verbatim:
			p.WriteString("\n")
		case blank && begun:
			p.WriteString(".PP\n")
		}
		verbatim, begun, blank = indented, true, false
		p.WriteString(escape(strings.ReplaceAll(line, "\t", "    ")) + "\n")
	}
	if verbatim {
		p.WriteString(".fi\n")
	}
}

func (p *page) verbatim(text string) {
	fmt.Fprintf(p, ".nf\n%s\n.fi\n", escape(strings.Trim(text, "\n")))
}

// flags lists the flags of a set, or says nothing when there are none.
func (p *page) flags(flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		p.WriteString(".TP\n")
		if f.Shorthand != "" {
			fmt.Fprintf(p, `\fB\-%s\fR, `, f.Shorthand)
		}
		fmt.Fprintf(p, `\fB\-\-%s\fR`, escape(f.Name))
		if value != "" {
			fmt.Fprintf(p, ` \fI%s\fR`, escape(value))
		}
		if d := f.DefValue; d != "" && d != "false" && d != "0" && d != "0s" && d != "[]" {
			usage += " (default " + d + ")"
		}
		p.WriteString("\n" + escape(usage) + "\n")
	})
}

// describe writes what a command does, its flags and examples.
func (p *page) describe(cmd *cobra.Command) {
	long := cmd.Long
	if long == "" {
		long = cmd.Short
	}
	p.text(strings.Replace(long, settings.Table(), "  see ENVIRONMENT in duestream(1)\n", 1))
}

func (p *page) environment() {
	p.section("ENVIRONMENT")
	settings.Each(func(name, kind, value, meaning string) {
		fmt.Fprintf(p, ".TP\n\\fB%s\\fR (%s, default %s)\n%s\n", escape(name), escape(kind), escape(value), escape(meaning))
	})
	for _, v := range [][2]string{
		{"NO_COLOR", "when it is set to anything, no colours are used unless --color always is given"},
		{"TERM", "when it is dumb, no colours are used, and top prints a single frame"},
	} {
		fmt.Fprintf(p, ".TP\n\\fB%s\\fR\n%s\n", v[0], escape(v[1]))
	}
}

func (p *page) exitStatus() {
	p.section("EXIT STATUS")
	for line := range strings.Lines(exit.Help) {
		if code, meaning, ok := strings.Cut(strings.TrimSpace(line), "  "); ok {
			fmt.Fprintf(p, ".TP\n\\fB%s\\fR\n%s\n", code, escape(strings.TrimSpace(meaning)))
		}
	}
}

// manual returns the page of the whole program.
func manual(root *cobra.Command) string {
	p := newPage(root, `\fBduestream\fR \fIcommand\fR [\fIarguments\fR] [\fIflags\fR]`)
	p.WriteString("These may be given to every command.\n.TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nhelp for the command\n")
	p.WriteString(".TP\n\\fB\\-v\\fR, \\fB\\-\\-version\\fR\nprint the version (without a command)\n")
	p.flags(root.PersistentFlags())
	p.section("COMMANDS")
	for _, cmd := range AllCommands(root)[1:] {
		fmt.Fprintf(p, ".SS %s\n", quoted(cmd.UseLine()))
		p.describe(cmd)
		p.flags(cmd.LocalNonPersistentFlags())
		if cmd.Example != "" {
			p.WriteString(".PP\nExamples:\n")
			p.verbatim(cmd.Example)
		}
	}
	p.environment()
	p.exitStatus()
	p.section("EXAMPLES")
	p.verbatim(root.Example)
	p.section("SEE ALSO")
	p.WriteString("redis\\-cli(1), valkey\\-cli(1)\n")
	return p.String()
}

// commandManual returns the page of one command.
func commandManual(cmd *cobra.Command) string {
	p := newPage(cmd, escape(cmd.UseLine()))
	p.WriteString(".TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nhelp for the command\n")
	p.flags(cmd.LocalNonPersistentFlags())
	p.flags(cmd.InheritedFlags())
	if cmd.Example != "" {
		p.section("EXAMPLES")
		p.verbatim(cmd.Example)
	}
	p.section("SEE ALSO")
	also := []string{"duestream(1)"}
	if parent := cmd.Parent(); parent.HasParent() {
		also = append(also, ManName(parent)+"(1)")
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			also = append(also, ManName(sub)+"(1)")
		}
	}
	p.WriteString(escape(strings.Join(also, ", ")) + "\n")
	p.WriteString(".PP\nEnvironment and exit codes are those of duestream(1).\n")
	return p.String()
}
