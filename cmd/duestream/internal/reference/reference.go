// Package reference writes the pages of docs/reference that follow from the program: commands with their flags,
// environment variables, and policy settings. A test of the command holds the pages up to date.
package reference

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/internal/policy"
)

const generated = "<!-- Written by `make reference` from the program. Do not edit. -->\n\n"

// ConfigurationPage is the file, below docs/reference, that lists variables and settings.
const ConfigurationPage = "configuration.md"

// tableOfVariables stands for the table of environment variables while markdown formats the help text around it. The
// function would make a code block of the table, and escape the link that replaces it.
const tableOfVariables = "TABLE-OF-VARIABLES"

// Pages returns all pages by their file names below docs/reference. exitCodes is the list of exit codes in the help
// text: a number and its meaning on each line.
func Pages(root *cobra.Command, exitCodes string) map[string]string {
	pages := map[string]string{ConfigurationPage: configuration(), "command.md": index(root, exitCodes)}
	for _, cmd := range visible(root) {
		pages[fileOf(cmd)] = commandPage(cmd)
	}
	return pages
}

// visible returns the commands directly below a command, without hidden ones and help.
func visible(cmd *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(slices.Clone(cmd.Commands()), func(c *cobra.Command) bool { return !c.IsAvailableCommand() })
}

// fileOf returns the file of a command directly below the root.
func fileOf(cmd *cobra.Command) string { return "command/" + cmd.Name() + ".md" }

func index(root *cobra.Command, exitCodes string) string {
	var b strings.Builder
	b.WriteString("# Command\n\n" + generated)
	b.WriteString("`duestream` is one program with these commands. Each has a page with its flags and examples.\n" +
		"`duestream <command> --help` prints the same text, and `duestream man` prints a manual page.\n" +
		"[Configuration](configuration.md) lists environment variables and policy settings.\n\n" +
		"Most commands that print data take `--json`. It prints JSON, for programs.\n\n")
	b.WriteString("## Commands\n\n| Command | What it does |\n|---|---|\n")
	for _, top := range visible(root) {
		rows(&b, top, fileOf(top))
	}
	b.WriteString("\n## Flags of every command\n\n")
	flagTable(&b, root.PersistentFlags())
	b.WriteString("\n## Exit codes\n\n| Code | Meaning |\n|---|---|\n")
	b.WriteString(strings.Join(codeRows(exitCodes), "\n") + "\n")
	return b.String()
}

// rows writes a row of the index for a command and for each command below it.
func rows(b *strings.Builder, cmd *cobra.Command, file string) {
	path := cmd.CommandPath()
	fmt.Fprintf(b, "| [`%s`](%s#%s) | %s |\n", path, file, strings.ReplaceAll(path, " ", "-"), cell(cmd.Short))
	for _, sub := range visible(cmd) {
		rows(b, sub, file)
	}
}

// codeRows turns the list of exit codes into rows. A line without a number continues the line before it.
func codeRows(exitCodes string) (table []string) {
	for line := range strings.Lines(strings.TrimSpace(exitCodes)) {
		code, meaning, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case strings.HasSuffix(strings.TrimSpace(line), ":"): // the heading
		case strings.Trim(code, "0123456789") == "":
			table = append(table, fmt.Sprintf("| %s | %s |", code, cell(strings.TrimSpace(meaning))))
		default:
			last := &table[len(table)-1]
			*last = strings.TrimSuffix(*last, " |") + " " + cell(strings.TrimSpace(line)) + " |"
		}
	}
	return table
}

func commandPage(cmd *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# " + cmd.CommandPath() + "\n\n" + generated)
	describe(&b, cmd)
	below(&b, cmd)
	return b.String()
}

// below writes a section for each command below a command.
func below(b *strings.Builder, cmd *cobra.Command) {
	for _, sub := range visible(cmd) {
		b.WriteString("\n## " + sub.CommandPath() + "\n\n")
		describe(b, sub)
		below(b, sub)
	}
}

// describe writes a command's usage, text, flags and examples.
func describe(b *strings.Builder, cmd *cobra.Command) {
	fmt.Fprintf(b, "%s.\n\n```text\n%s\n```\n", prose(cmd.Short), cmd.UseLine())
	if cmd.Long != "" {
		text := markdown(strings.Replace(cmd.Long, settings.Table(), tableOfVariables+"\n", 1))
		const page = "see [Configuration](../configuration.md#environment)."
		b.WriteString("\n" + strings.Replace(text, tableOfVariables, page, 1))
	}
	if flags := cmd.LocalNonPersistentFlags(); hasRows(flags) {
		b.WriteString("\n")
		flagTable(b, flags)
	}
	if cmd.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s```\n", unindented(cmd.Example))
	}
}

func hasRows(flags *pflag.FlagSet) (has bool) {
	flags.VisitAll(func(f *pflag.Flag) { has = has || isShown(f) })
	return has
}

func isShown(f *pflag.Flag) bool { return !f.Hidden && f.Name != "help" }

func flagTable(b *strings.Builder, flags *pflag.FlagSet) {
	b.WriteString("| Flag | Value | Default | Meaning |\n|---|---|---|---|\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if !isShown(f) {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		value, usage := pflag.UnquoteUsage(f)
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", name, cell(value), code(builtIn(f)), cell(usage))
	})
}

// builtIn returns the default of a flag, or "" if it means nothing to a reader.
func builtIn(f *pflag.Flag) string {
	if slices.Contains([]string{"false", "0", "0s", "[]"}, f.DefValue) {
		return ""
	}
	return f.DefValue
}

func configuration() string {
	var b strings.Builder
	b.WriteString("# Configuration\n\n" + generated)
	b.WriteString("Contents: [Environment](#environment) · [Policy settings](#policy-settings)\n\n## Environment\n\n" +
		"A flag with the same meaning takes precedence over its variable. A variable that is set but empty is an error.\n" +
		"`duestream serve` refuses a variable whose name begins with `DUESTREAM_` and that is in none of the first three\n" +
		"tables, because it is probably misspelt. It ignores the names that Kubernetes and `docker-compose.yml` set.\n\n" +
		"A duration is a number with a unit: `500ms`, `30s`, `15m`, `24h`, `7d`.\n")
	for _, part := range []struct {
		heading, text string
		spec          any
	}{
		{"Every command that connects to Redis", "", &settings.Connection{}},
		{"serve", "`duestream gateway` also reads `DUESTREAM_LOG_LEVEL`, `DUESTREAM_LOG_FORMAT`, " +
			"`DUESTREAM_METRICS_ADDR` and\n" +
			"`DUESTREAM_SHUTDOWN_TIMEOUT`. `duestream work` and `duestream push run` read the first three of these; the\n" +
			"log level of `work` is `warn` by default.\n" +
			"`duestream health` reads `DUESTREAM_HEALTH_FILE` with `--self`, and `DUESTREAM_METRICS_ADDR` with `--ready`.\n\n" +
			"The variables of policy settings (those before `DUESTREAM_LOG_LEVEL`) are written\n" +
			"to Redis, as the defaults of all queues. The bridge that starts last wins.\n\n", &settings.Serve{}},
		{"gateway and serve", "", &settings.HTTP{}},
		{"migrate", "", &settings.MigrateFrom{}},
	} {
		fmt.Fprintf(&b, "\n### %s\n\n%s| Variable | Type | Default | Meaning |\n|---|---|---|---|\n", part.heading, part.text)
		row := func(name, kind, value, meaning string) {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, kind, code(value), cell(meaning))
		}
		if part.heading == "serve" {
			settings.PolicyVariables(row)
		}
		settings.EachOf(part.spec, row)
	}
	b.WriteString("\n### Other variables\n\n" +
		"- `duestream work` sets variables for the command that it runs: see [work](command/work.md).\n" +
		"- `NO_COLOR` and `TERM` decide about colour, `VISUAL` and `EDITOR` about the editor of `duestream dead edit`.\n" +
		"- `USER` is the name of an operator in the history of a queue.\n" +
		"- `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` are those of systemd.\n")
	b.WriteString("\n## Policy settings\n\n" +
		"A policy setting is looked for at these places, in this order: the group's own value, the value of the queue, " +
		"the\n" +
		"defaults of all queues, the built-in value. [The protocol](protocol.md#11-policy) says how each is stored. " +
		"The table\n" +
		"gives values as they are stored in Redis. `duestream queue set` and `duestream queue show` use the names of the\n" +
		"second column. There, a duration has a unit, `held`, `held_workers` and `free_retries` are `true` or `false`, " +
		"and\n" +
		"`history=50000/24h` sets both settings of the history. Over HTTP, `held`, `held_workers` and\n" +
		"`free_retries` are JSON booleans, and only pause and resume change the first two.\n\n" +
		"A setting with only *queue* in the column For holds for a whole queue: it cannot be set for a group, nor as a\n" +
		"default of all queues. In a queue with partitions, `rate`, `burst`, `ready_limit` and `history` count in each\n" +
		"partition by itself.\n\n" +
		"| In Redis and over HTTP | In the command | Unit | Built in | Limits | For | Meaning |\n" +
		"|---|---|---|---|---|---|---|\n")
	for _, s := range policy.Settings() {
		scope := "queue, group"
		if s.WholeQueue {
			scope = "queue"
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | `%s` | %s | %s | %s |\n",
			s.Name, s.Word, s.Unit(), s.Default(), cell(s.Limits()), scope, cell(inRedis(s)))
	}
	return b.String()
}

// inRedis returns the meaning of a setting's values in Redis.
func inRedis(s policy.Setting) string {
	text := s.Meaning
	if s.Kind == policy.Switch {
		text = "1: " + text
	}
	if s.Zero != "" {
		text += ". 0: " + s.Zero
	}
	return text
}

// markdown turns a help text into Markdown: its indented lines become blocks of text.
func markdown(text string) string {
	var b strings.Builder
	verbatim, blank := false, false
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		if strings.TrimSpace(line) == "" {
			blank = true
			continue
		}
		indented := strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "\t")
		switch {
		case indented && !verbatim:
			b.WriteString("\n```text\n")
		case !indented && verbatim:
			b.WriteString("```\n\n")
		case blank:
			b.WriteString("\n")
		}
		verbatim, blank = indented, false
		if indented {
			b.WriteString(unindented(line))
		} else {
			b.WriteString(prose(line) + "\n")
		}
	}
	if verbatim {
		b.WriteString("```\n")
	}
	return b.String()
}

// unindented removes two spaces, or a tab, from the beginning of each line.
func unindented(text string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		line = strings.TrimPrefix(strings.TrimPrefix(line, "  "), "\t")
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

var special = strings.NewReplacer("<", `\<`, "*", `\*`, "[", `\[`)

// prose escapes the characters of a text that mean something in Markdown, except in quoted code.
func prose(text string) string {
	parts := strings.Split(text, "`")
	for i := 0; i < len(parts); i += 2 {
		parts[i] = special.Replace(parts[i])
	}
	return strings.Join(parts, "`")
}

// cell returns a text for a table.
func cell(text string) string { return strings.ReplaceAll(prose(text), "|", `\|`) }

// code quotes a value, if there is one.
func code(value string) string {
	if value == "" {
		return ""
	}
	return "`" + value + "`"
}
