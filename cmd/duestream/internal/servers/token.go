package servers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// Token returns the command token.
func Token(a *cli.App) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "token", Short: "Manage the tokens that gateways accept",
		Long: `A client of a gateway shows the secret of a token. The token lists the operations that
the client may call, and the queues. Redis stores the hash of the secret, not the
secret: see docs/guides/tokens.md.`,
		Example: `  duestream token add shop --verb publish --queue 'orders.*'
  duestream token list
  duestream token rm shop`,
	}, tokenAdd(a), tokenList(a), tokenRm(a))
}

// addedToken is the JSON of a new token with its secret.
type addedToken struct {
	Token  string `json:"token"`
	Did    string `json:"did"`
	Secret string `json:"secret,omitempty"`
}

func tokenAdd(a *cli.App) *cobra.Command {
	var t admin.Token
	var verbs, queues []string
	var rate string
	var expires time.Duration
	cmd := &cobra.Command{
		Use:   "add <token>",
		Short: "Make a token, and print its secret",
		Long: `Makes a token, and prints its secret. The secret cannot be shown again. Gateways accept
the token at once.

publish allows scheduling, cancelling and rescheduling messages. consume allows
receiving and settling them. inspect allows reading queues, messages, dead letters and
settings. operate allows reading and changing them. A gateway of an older release refuses
a token with inspect. In --queue, * stands for any characters. A request that concerns no
queue, or all queues, needs a token with --queue '*'.

To change a token, or its secret, add a token with another name, and remove the old
token when it is not used any more.`,
		Example: `  duestream token add shop --verb publish --queue 'orders.*' --expires 90d
  duestream token add robot --verb publish,consume --queue orders --queue mail --rate 500/s
  duestream token add board --verb inspect --queue '*'
  duestream token add team-a --verb operate --queue '*' --description on-call`,
	}
	f := cmd.Flags()
	f.StringArrayVar(&verbs, "verb", nil,
		"allowed operations: publish, consume, inspect, operate, or several with commas (required)")
	f.StringArrayVarP(&queues, "queue", "q", nil,
		"allowed queues, like orders or 'orders.*', or several with commas; may be given again (required)")
	flags.DelayVar(f, &expires, "expires", "refuse the token after this time: 12h, 90d; default: never")
	f.StringVar(&rate, "rate", "",
		"rate of the token at all gateways together, in messages: 500/s, 30/m, 1/h; default: no limit")
	f.IntVar(&t.Burst, "burst", 0,
		"with --rate: messages at once; default: a tenth of the rate per second, at least one")
	f.StringVar(&t.Description, "description", "", "purpose of the token, for people")
	_ = cmd.MarkFlagRequired("verb")
	_ = cmd.MarkFlagRequired("queue")
	var names []string
	for _, verb := range admin.Verbs() {
		names = append(names, string(verb))
	}
	cli.OfferValues(cmd, "verb", names...)
	offerQueues := func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return cli.CompleteQueues(a)(cmd, nil, typed)
	}
	_ = cmd.RegisterFlagCompletionFunc("queue", offerQueues)
	fill := func(args []string) error {
		t.Name, t.Rate, t.Queues = args[0], bridge.Rate(rate), strings.Split(strings.Join(queues, ","), ",")
		for verb := range strings.SplitSeq(strings.Join(verbs, ","), ",") {
			t.Verbs = append(t.Verbs, admin.Verb(verb))
		}
		return t.Check()
	}
	return a.WithAdmin(cmd, fill, func(ctx context.Context, op *admin.Admin, args []string) error {
		if expires > 0 {
			now, err := op.Time(ctx, "")
			if err != nil {
				return err
			}
			t.Expires = now.Add(expires)
		}
		secret, err := op.AddToken(ctx, t)
		if err != nil {
			if errors.Is(err, bridge.ErrUnavailable) {
				a.Note("if `duestream token list` shows %s, nobody has its secret: remove the token, and add it again",
					args[0])
			}
			return err
		}
		return a.Print(addedToken{args[0], "added", secret}, func() {
			fmt.Fprintf(a.Out, "%s  added\nsecret, shown this once: %s\n", args[0], secret)
		})
	})
}

func tokenList(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List tokens, and what each may do",
		Long: `Lists the tokens in Redis, without the tokens of a gateway's file. A value in Redis that
does not parse as a token has no name. It is listed by its key, the hash of a secret, and
gateways refuse this secret.`,
		Example: "  duestream token list\n  duestream token list --json",
	}
	return a.WithAdmin(cmd, nil, func(ctx context.Context, op *admin.Admin, _ []string) error {
		tokens, err := op.Tokens(ctx)
		if err != nil {
			return err
		}
		list, now := a.List("TOKEN", "MAY", "QUEUES", "RATE", "ADDED", "STATE", "DESCRIPTION"), a.Now("")
		for _, t := range tokens {
			if t.Problem != "" {
				list.Add(t, human.OneLine(t.Digest, 70), "", "", "", "", "wrong: "+human.OneLine(t.Problem, 120), "")
				continue
			}
			state := "valid"
			switch {
			case t.Expired:
				state = "expired " + human.Ago(t.Expires, now)
			case !t.Expires.IsZero():
				state = "expires " + human.Relative(t.Expires, now)
			}
			var verbs []string
			for _, verb := range t.Verbs {
				verbs = append(verbs, string(verb))
			}
			rate := string(t.Rate)
			if t.Limits != nil {
				rate = t.Limits.String()
			}
			list.Add(t, t.Name, strings.Join(verbs, " "), human.OneLine(strings.Join(t.Queues, " "), 60), rate,
				human.Ago(t.Created, now), state, human.OneLine(t.Description, 60))
		}
		return list.Finish("no tokens")
	})
}

func tokenRm(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm <token>",
		Short: "Revoke a token",
		Long: `Removes a token. Every gateway refuses it within a second. To remove a value that is no
valid token, name the hash that ` + "`duestream token list`" + ` shows.`,
		Example: "  duestream token rm shop",
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return cli.AskForNames(cmd.Context(), a, tokenNames), cobra.ShellCompDirectiveNoFileComp
	}
	return a.WithAdmin(cmd, nil, func(ctx context.Context, op *admin.Admin, args []string) error {
		if err := op.RemoveToken(ctx, args[0]); err != nil {
			return err
		}
		return a.Print(addedToken{Token: args[0], Did: "removed"}, func() {
			fmt.Fprintf(a.Out, "%s  removed: gateways refuse it within a second\n", args[0])
		})
	})
}

// tokenNames offers the tokens.
func tokenNames(ctx context.Context, op *admin.Admin) (names []string) {
	tokens, _ := op.Tokens(ctx)
	for _, t := range tokens {
		if t.Problem == "" {
			names = append(names, t.Name+"\t"+human.OneLine(t.Description, 60))
		}
	}
	return names[:min(len(names), cli.MostOffers)]
}
