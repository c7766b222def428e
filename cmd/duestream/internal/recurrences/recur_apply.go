package recurrences

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v2"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
	"github.com/duestream/duestream/internal/written"
)

// maxRecurrencesFile is the largest file that recur apply reads, in bytes.
const maxRecurrencesFile = 16 << 20

// recurrencesFile is the file that recur apply reads.
type recurrencesFile struct {
	Owner       string `yaml:"owner"`
	Recurrences []struct {
		Queue   string            `yaml:"queue"`
		Name    string            `yaml:"name"`
		Cron    string            `yaml:"cron"`
		Zone    string            `yaml:"zone"`
		Every   fileDuration      `yaml:"every"`
		Phase   fileDuration      `yaml:"phase"`
		Payload string            `yaml:"payload"`
		Headers map[string]string `yaml:"headers"`
		Start   fileTime          `yaml:"start"`
		End     fileTime          `yaml:"end"`
		Count   int               `yaml:"count"`
		Jitter  fileDuration      `yaml:"jitter"`
		Missed  admin.Missed      `yaml:"missed"`
		Overlap admin.Overlap     `yaml:"overlap"`
		Paused  *bool             `yaml:"paused"`
	} `yaml:"recurrences"`
}

type fileDuration time.Duration

// UnmarshalYAML parses a duration in the form that flags take.
func (d *fileDuration) UnmarshalYAML(unmarshal func(any) error) error {
	var text string
	if err := unmarshal(&text); err != nil {
		return err
	}
	parsed, err := written.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	*d = fileDuration(parsed)
	return nil
}

type fileTime time.Time

// UnmarshalYAML parses an RFC 3339 time.
func (t *fileTime) UnmarshalYAML(unmarshal func(any) error) error {
	var text string
	if err := unmarshal(&text); err != nil {
		return err
	}
	parsed, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return fmt.Errorf("%q: must be RFC 3339 with a time zone", text)
	}
	*t = fileTime(parsed)
	return nil
}

func recurApply(a *cli.App) *cobra.Command {
	var file, owner string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Make the recurrences of an owner equal to a file",
		Long: `Makes the recurrences of one owner equal to a file, in all queues. It adds and changes
the recurrences of the file, and removes all others of the owner. The file is YAML:

  owner: billing
  recurrences:
    - queue: reports
      name: nightly
      cron: 0 9 * * 1-5
      zone: Europe/Paris
      payload: '{"to":"all"}'
      headers: {source: cron}
      missed: once
    - {queue: probes, name: ping, every: 90s, overlap: skip}

Every flag of recur add except --header and --allow-old-bridges is a field. Without the
field "paused", a paused recurrence stays paused. If the file names a recurrence of
another owner, or of none, or if the file has any fault, nothing is changed.`,
		Example: "  duestream recur apply -f recurrences.yaml --dry-run\n  duestream recur apply -f recurrences.yaml",
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "the file; - = standard input")
	a.OldBridgesFlag(cmd)
	cmd.Flags().StringVar(&owner, "owner", "", "the owner, instead of the one in the file")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and do nothing")
	_ = cmd.MarkFlagRequired("file")
	var wanted []admin.WantedRecurrence
	return a.WithAdmin(cmd, func([]string) (err error) {
		wanted, owner, err = readRecurrences(a, file, owner)
		return err
	}, func(ctx context.Context, op *admin.Admin, _ []string) error {
		applied, err := op.ApplyRecurrences(ctx, owner, wanted, dryRun)
		printed := printApplied(a, applied, dryRun)
		return errors.Join(err, printed)
	})
}

func printApplied(a *cli.App, applied []admin.AppliedRecurrence, dryRun bool) error {
	list := a.List("QUEUE", "NAME", "", "TAKEN BACK")
	for _, one := range applied {
		did := one.Did
		if did != "unchanged" {
			did = output.Done(did, dryRun)
		}
		value := struct {
			admin.AppliedRecurrence
			DryRun bool `json:"dry_run"`
		}{one, dryRun}
		list.Add(value, one.Queue, human.OneLine(one.Name, 40), did, fmt.Sprint(one.TakenBack))
	}
	return list.Finish("no recurrences")
}

// readRecurrences reads a file of recurrences. It returns owner, or if that is empty the owner that the file names.
func readRecurrences(
	a *cli.App, name, owner string,
) (wanted []admin.WantedRecurrence, ownerOfAll string, err error) {
	in := a.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, "", usage.Errorf("%w", err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxRecurrencesFile+1))
	if err != nil {
		return nil, "", fmt.Errorf("read %s: %w", name, err)
	}
	if len(text) > maxRecurrencesFile {
		return nil, "", usage.Errorf("%s: must be at most %d bytes", name, maxRecurrencesFile)
	}
	var content recurrencesFile
	if err := yaml.UnmarshalStrict(text, &content); err != nil {
		return nil, "", usage.Errorf("%s: %s", name, human.MiddleCut(err.Error()))
	}
	if owner == "" {
		owner = content.Owner
	}
	if owner == "" {
		return nil, "", usage.Errorf("%s: owner: must be given, in the file or by --owner", name)
	}
	var errs []error
	for _, r := range content.Recurrences {
		one := admin.WantedRecurrence{Paused: r.Paused, Recurrence: bridge.Recurrence{
			Name: r.Name, Queue: r.Queue, Payload: []byte(r.Payload), Headers: r.Headers, Cron: r.Cron, Zone: r.Zone,
			Every: time.Duration(r.Every), Phase: time.Duration(r.Phase), Start: time.Time(r.Start), End: time.Time(r.End),
			Count: r.Count, Jitter: time.Duration(r.Jitter), Missed: r.Missed, Overlap: r.Overlap, Owner: owner,
		}}
		if _, err := one.Compile(); err != nil {
			errs = append(errs, fmt.Errorf("recurrence %s of %s: %w", human.OneLine(r.Name, 40), human.OneLine(r.Queue, 40), err))
		}
		wanted = append(wanted, one)
	}
	return wanted, owner, errors.Join(errs...)
}
