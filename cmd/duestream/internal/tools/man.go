package tools

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
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
		pages, err := manual(cmd.Root())
		if err != nil {
			return err
		}
		if dir != "" {
			return writeManual(dir, pages)
		}
		for _, one := range pages {
			if _, err := a.Out.Write(one.text); err != nil {
				return err
			}
		}
		return nil
	})
}

// manualPage is the page of one command, in the form that man(1) reads.
type manualPage struct {
	file string
	text []byte
}

// writeManual writes each page to its file in a directory, which is created.
func writeManual(dir string, pages []manualPage) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, one := range pages {
		if err := os.WriteFile(filepath.Join(dir, one.file), one.text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// manual returns the pages of all commands, the page of the program first. It turns the texts of the commands into
// Markdown, which the generator of the pages wants, so the commands cannot print help for people any more.
func manual(root *cobra.Command) (pages []manualPage, err error) {
	root.DisableAutoGenTag = true
	commands := AllCommands(root)
	done := map[*pflag.Flag]bool{}
	for _, cmd := range commands {
		cmd.InitDefaultHelpFlag()
		toMarkdown(cmd, done)
	}
	root.Long += "\n\n" + environmentSection() + "\n" + exitSection()
	for _, cmd := range commands {
		header := doc.GenManHeader{Source: "duestream " + root.Version, Manual: "duestream"}
		var text bytes.Buffer
		if err := doc.GenMan(cmd, &header, &text); err != nil {
			return nil, err
		}
		pages = append(pages, manualPage{ManualName(cmd) + ".1", inASCII(text.String())})
	}
	return pages, nil
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

// ManualName returns the name of the page of a command: duestream-queue-set.
func ManualName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// toMarkdown makes Markdown of the texts of a command and its flags. done holds the flags that are Markdown already,
// because commands share some flags.
func toMarkdown(cmd *cobra.Command, done map[*pflag.Flag]bool) {
	name, arguments, _ := strings.Cut(cmd.Use, " ")
	cmd.Use = strings.TrimSpace(name + " " + escapeMarkdown(arguments))
	if cmd.Long == "" {
		cmd.Long = cmd.Short
	}
	cmd.Short = escapeMarkdown(cmd.Short)
	cmd.Long = markdown(strings.Replace(cmd.Long, settings.Table(), "  see ENVIRONMENT in duestream(1)\n", 1))
	for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) {
			if !done[f] {
				done[f] = true
				f.Usage = escapeMarkdown(f.Usage)
			}
		})
	}
}

// escapeMarkdown escapes the characters that mean something in Markdown.
var escapeMarkdown = strings.NewReplacer(`\`, `\\`, "`", "\\`", `*`, `\*`, `_`, `\_`, `<`, `\<`, `>`, `\>`, `[`, `\[`,
	`]`, `\]`, `{`, `\{`, `}`, `\}`, `#`, `\#`, `|`, `\|`, `~`, `\~`, `&`, `\&`).Replace

// markdown escapes special characters in paragraphs, and makes blocks of code of indented lines.
func markdown(text string) string {
	var b strings.Builder
	code := false
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		indented := strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "\t") || code && line == ""
		if indented != code {
			code = indented
			b.WriteString("\n```\n")
		}
		if !code {
			line = escapeMarkdown(line)
		}
		b.WriteString(line + "\n")
	}
	if code {
		b.WriteString("```\n")
	}
	return b.String()
}

// inASCII replaces characters outside ASCII by escapes, because groff reads UTF-8 only with an option.
func inASCII(page string) []byte {
	var b bytes.Buffer
	for _, r := range page {
		if r > unicode.MaxASCII {
			fmt.Fprintf(&b, `\[u%04X]`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.Bytes()
}

// environmentSection describes the variables that the commands read.
func environmentSection() string {
	var b strings.Builder
	b.WriteString("# ENVIRONMENT\n")
	settings.Each(func(name, kind, value, meaning string) {
		fmt.Fprintf(&b, "**%s** (%s, default %s)\n\n: %s\n\n", name, kind, escapeMarkdown(value), escapeMarkdown(meaning))
	})
	b.WriteString("**NO_COLOR**\n\n: if it is set to any value, no colours are used unless --color always is given\n\n")
	b.WriteString("**TERM**\n\n: if TERM is dumb, no colours are used, and top prints a single frame\n\n")
	return b.String()
}

// exitSection describes the exit codes.
func exitSection() string {
	var b strings.Builder
	b.WriteString("# EXIT STATUS\n")
	_, table, _ := strings.Cut(exit.Help, ":\n")
	b.WriteString("```\n" + table + "```\n")
	return b.String()
}
