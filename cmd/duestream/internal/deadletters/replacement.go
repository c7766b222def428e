package deadletters

import (
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
)

// replacement holds the flags that change a dead letter when it is redriven: payload, headers, group and delay.
type replacement struct {
	admin.RedriveOptions
	payload, payloadFile string
	headers              flags.Headers
	given                func(flag string) bool
}

// flags adds the flags to a command. payload, payloadFile and header are help texts; letter is the command's word for
// the dead letter.
func (r *replacement) flags(cmd *cobra.Command, payload, payloadFile, header, letter string) {
	f := cmd.Flags()
	f.StringVar(&r.payload, "payload", "", payload)
	f.StringVar(&r.payloadFile, "payload-file", "", payloadFile+"; - = standard input")
	f.Var(&r.headers, "header", header+"; may be given again")
	f.StringVar(&r.To, "to", "", "for this group instead of the one that "+letter+" failed in")
	flags.DelayVar(f, &r.Delay, "in", "deliver so long after it is redriven")
	cmd.MarkFlagsMutuallyExclusive("payload", "payload-file")
	r.given = f.Changed
}

// readPayload reads the new payload from its flag or file, if one was given.
func (r *replacement) readPayload(a *cli.App) error {
	var payload []byte
	switch {
	case r.payloadFile != "":
		var err error
		if payload, err = cli.ReadPayloadFile(a, r.payloadFile); err != nil {
			return err
		}
	case r.given("payload"): // may be empty
		payload = []byte(r.payload)
	default:
		return nil
	}
	r.Payload = &payload
	return admin.CheckPayload(payload)
}
