package main

import (
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
)

// replacement holds the flags that change a dead letter when it is redriven: payload, headers, group and delay.
type replacement struct {
	payload     string
	edited      bool // payload was given, maybe empty
	payloadFile string
	headers     flags.Headers
	to          string
	in          flags.Delay
}

// flags adds them to a command, with its help texts for payload, payload file and headers, and its word for the letter.
func (r *replacement) flags(cmd *cobra.Command, payload, payloadFile, header, to string) {
	f := cmd.Flags()
	f.StringVar(&r.payload, "payload", "", payload)
	f.StringVar(&r.payloadFile, "payload-file", "", payloadFile+"; - = standard input")
	f.Var(&r.headers, "header", header+"; may be given again")
	f.StringVar(&r.to, "to", "", "for this group instead of the one that "+to+" failed in")
	flags.DelayVar(f, &r.in, "in", "deliver so long after it is redriven")
	cmd.MarkFlagsMutuallyExclusive("payload", "payload-file")
	cmd.PreRun = func(cmd *cobra.Command, _ []string) { r.edited = cmd.Flags().Changed("payload") }
}

// newPayload returns the payload that was given, or nil.
func (r *replacement) newPayload(a *app) (*[]byte, error) {
	switch {
	case r.payloadFile != "":
		payload, err := a.payloadFile(r.payloadFile)
		return &payload, err
	case r.edited:
		payload := []byte(r.payload)
		return &payload, admin.CheckPayload(payload)
	}
	return nil, nil
}
