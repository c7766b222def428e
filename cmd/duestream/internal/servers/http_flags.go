package servers

import (
	"cmp"
	"errors"
	"net"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/gateway"
	"github.com/duestream/duestream/cmd/duestream/internal/certs"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/listener"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// httpFlags are the HTTP flags of gateway and serve.
type httpFlags struct {
	addr, tokens    string // address for requests, file of tokens
	firstToken      string // file of the first token
	maxPayload      int
	durability      string
	admin, accounts string       // address for operators, file of their accounts
	pushFlag        flags.Switch // value of the flag --push
	push            bool         // the flag, or without it the environment
	tls             certs.Files

	readOnlyFlag flags.Switch // value of the flag --dashboard-read-only
	readOnly     bool         // the flag, or without it the environment
}

// flags adds the flags to a command. defaultAddr says where the command takes requests if no address is given.
func (o *httpFlags) flags(cmd *cobra.Command, defaultAddr string) {
	f := cmd.Flags()
	f.StringVar(&o.addr, "http", "", "take requests on this host:port; default $DUESTREAM_HTTP_ADDR, else "+defaultAddr)
	f.StringVar(&o.tokens, "tokens-file", "",
		"file of tokens, besides the tokens in Redis; default $DUESTREAM_HTTP_TOKENS_FILE")
	f.StringVar(&o.firstToken, "first-token-file", "",
		"if there is no token, make one with all rights and write its secret to this new file of mode 0600; "+
			"default $DUESTREAM_HTTP_FIRST_TOKEN_FILE")
	f.IntVar(&o.maxPayload, "max-payload", gateway.DefaultMaxPayload,
		"largest payload of a request in bytes, up to 16777216")
	f.StringVar(&o.durability, "durability", "",
		"durability that publishing, cancelling and moving over HTTP wait for: accepted, fsynced, replicated=n, or "+
			"fsynced,replicated=n; default $DUESTREAM_HTTP_DURABILITY, else accepted")
	f.StringVar(&o.tls.Cert, "tls-cert", "",
		"speak TLS with the certificate of this file; default $DUESTREAM_HTTP_TLS_CERT")
	f.StringVar(&o.tls.Key, "tls-key", "", "file of the private key of --tls-cert; default $DUESTREAM_HTTP_TLS_KEY")
	f.StringVar(&o.tls.ClientCA, "tls-client-ca", "",
		"clients must show a certificate signed by an authority of this file; default $DUESTREAM_HTTP_TLS_CLIENT_CA")
	f.StringVar(&o.admin, "admin", "",
		"answer operators on this host:port, with a dashboard at /dashboard/; default $DUESTREAM_ADMIN_ADDR, else not at all")
	f.StringVar(&o.accounts, "admin-accounts-file", "",
		"file of the operators' accounts, name:password on each line; default $DUESTREAM_ADMIN_ACCOUNTS_FILE")
	flags.SwitchVar(f, &o.readOnlyFlag, "dashboard-read-only",
		"the dashboard of --admin changes nothing; default $DUESTREAM_DASHBOARD_READ_ONLY")
	flags.SwitchVar(f, &o.pushFlag, "push", "also post messages to URLs, as push run does; default $DUESTREAM_PUSH")
}

// resolve fills missing flags from the environment, and refuses values that cannot work.
func (o *httpFlags) resolve() error {
	var s settings.HTTP
	err := settings.Fill(&s)
	o.addr, o.tokens = cmp.Or(o.addr, s.HTTPAddr), cmp.Or(o.tokens, s.HTTPTokensFile)
	o.firstToken = cmp.Or(o.firstToken, s.HTTPFirstTokenFile)
	o.durability = cmp.Or(o.durability, s.HTTPDurability, bridge.Accepted.String())
	if _, bad := bridge.ParseDurability(o.durability); bad != nil {
		err = errors.Join(err, bad)
	}
	o.admin, o.accounts = cmp.Or(o.admin, s.AdminAddr), cmp.Or(o.accounts, s.AdminAccountsFile)
	o.push, o.readOnly = o.pushFlag.Or(s.Push), o.readOnlyFlag.Or(s.DashboardReadOnly)
	o.tls = certs.Files{Cert: cmp.Or(o.tls.Cert, s.HTTPTLSCert), Key: cmp.Or(o.tls.Key, s.HTTPTLSKey),
		ClientCA: cmp.Or(o.tls.ClientCA, s.HTTPTLSClientCA)}
	hasCert, hasKey := o.tls.Cert != "", o.tls.Key != ""
	if hasCert != hasKey || o.tls.ClientCA != "" && !hasCert {
		err = errors.Join(err, usage.Errorf("tls-cert and tls-key must be given together; tls-client-ca needs both"))
	}
	for name, addr := range map[string]string{"http": o.addr, "admin": o.admin} {
		if _, _, bad := net.SplitHostPort(addr); addr != "" && bad != nil {
			err = errors.Join(err, usage.Errorf("%s %q: must be host:port, as %s", name, addr, defaultHTTPAddr))
		}
	}
	if o.admin != "" && o.accounts == "" && !listener.Loopback(o.admin) {
		err = errors.Join(err, usage.Errorf("admin %q: without accounts it answers on this machine alone: "+
			"listen on 127.0.0.1, or name a file of accounts with --admin-accounts-file", o.admin))
	}
	if o.maxPayload < 1 || o.maxPayload > 16<<20 {
		err = errors.Join(err, usage.Errorf("max-payload %d: must be from 1 to 16777216", o.maxPayload))
	}
	return err
}

const defaultHTTPAddr = "127.0.0.1:7777"
