package deadletters

import (
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
)

// redriveOptions are the options of a redrive, with the flags that redrive and edit share. Some flags set an option
// directly. The flags for payload and headers are kept as text until the command parses them.
type redriveOptions struct {
	admin.RedriveOptions
	payloadFlag, payloadFile string
	headerFlag               flags.Headers
	given                    func(flag string) bool // reports whether the command line has the flag
}

// flags adds the flags to a command. payload, payloadFile and header are help texts. letter is the command's word for
// the dead letter.
func (r *redriveOptions) flags(cmd *cobra.Command, payload, payloadFile, header, letter string) {
	f := cmd.Flags()
	f.StringVar(&r.payloadFlag, "payload", "", payload)
	f.StringVar(&r.payloadFile, "payload-file", "", payloadFile+"; - = standard input")
	f.Var(&r.headerFlag, "header", header+"; may be given again")
	f.StringVar(&r.To, "to", "", "for this group instead of the group in which "+letter+" failed")
	flags.DelayVar(f, &r.Delay, "in", "deliver this time after the redrive")
	cmd.MarkFlagsMutuallyExclusive("payload", "payload-file")
	r.given = f.Changed
}

// readPayload sets the new payload from its flag or file, if one was given.
func (r *redriveOptions) readPayload(a *cli.App) error {
	var payload []byte
	switch {
	case r.payloadFile != "":
		var err error
		if payload, err = cli.ReadPayloadFile(a, r.payloadFile); err != nil {
			return err
		}
	case r.given("payload"): // may be empty
		payload = []byte(r.payloadFlag)
	default:
		return nil
	}
	r.Payload = &payload
	return admin.CheckPayload(payload)
}
