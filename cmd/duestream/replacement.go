package main

import (
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
)

// replacement holds the flags that change a dead letter when it is redriven: payload, headers, group and delay.
type replacement struct {
	admin.RedriveOptions
	payload, payloadFile string
	headers              flags.Headers
	given                func(flag string) bool
}

// flags adds them to a command, with its help texts for payload, payload file and headers, and its word for the letter.
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

// readPayload reads the payload that was given, if one was.
func (r *replacement) readPayload(a *app) error {
	var payload []byte
	switch {
	case r.payloadFile != "":
		var err error
		if payload, err = a.payloadFile(r.payloadFile); err != nil {
			return err
		}
	case r.given("payload"): // maybe empty
		payload = []byte(r.payload)
	default:
		return nil
	}
	r.Payload = &payload
	return admin.CheckPayload(payload)
}
