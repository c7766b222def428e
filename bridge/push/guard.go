package push

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// ErrBlocked: the target's address is neither in the public internet nor in a network that the target allows.
var ErrBlocked = errors.New("the address is in no network that this target may reach")

// special are networks outside the public internet, or that tunnel out of it, beyond those that package netip knows.
var special = prefixes(
	"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "168.63.129.16/32", "192.88.99.0/24",
	"198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "::/96", "::ffff:0:0:0/96", "64:ff9b::/96",
	"64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/32", "2001:2::/48", "2001:10::/28", "2001:db8::/32",
	"2002::/16", "3fff::/20", "5f00::/16", "fec0::/10")

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// public reports whether an address belongs to the public internet.
func public(addr netip.Addr) bool {
	in := func(p netip.Prefix) bool { return p.Contains(addr) }
	return addr.IsGlobalUnicast() && !addr.IsPrivate() && !slices.ContainsFunc(special, in)
}

// mayDial reports whether a target may connect to an address.
func (t Target) mayDial(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	in := func(p netip.Prefix) bool { return unmap(p).Contains(addr) }
	return public(addr) || slices.ContainsFunc(t.Networks, in)
}

// unmap returns the IPv4 network of an IPv4-mapped one (::ffff:…), and any other network unchanged.
func unmap(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= mappedBits {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mappedBits)
	}
	return p
}

const mappedBits = 96 // of ::ffff:0:0/96, before the IPv4 address

const (
	dialTimeout        = 5 * time.Second
	idleTimeout        = 90 * time.Second
	answerHeaderBytes  = 64 << 10
	keepAlive          = 30 * time.Second
	mostIdlePerProcess = 100

	// An HTTP/2 connection that is silent for so long is pinged, and closed if no answer comes within pingTimeout.
	silence, pingTimeout = 15 * time.Second, 5 * time.Second
)

// newTransport returns the transport for a target's requests. It checks each address when it dials, after the lookup
// of the name, so a name that changes its address after a check cannot get through. It uses no proxy, because the
// check would then see only the address of the proxy.
func newTransport(t Target, config *tls.Config, resolver *net.Resolver) *http.Transport {
	dialer := &net.Dialer{
		Timeout: min(dialTimeout, t.Timeout), KeepAlive: keepAlive, Resolver: resolver,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil || !t.mayDial(at.Addr()) {
				return fmt.Errorf("%w: %s", ErrBlocked, address)
			}
			return nil
		},
	}
	if config != nil {
		config = config.Clone()
	}
	return &http.Transport{
		Proxy: nil, DialContext: dialer.DialContext, TLSClientConfig: config, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: t.Timeout, IdleConnTimeout: idleTimeout,
		MaxIdleConnsPerHost: min(t.Concurrency, mostIdlePerProcess), MaxResponseHeaderBytes: answerHeaderBytes,
		DisableCompression: true,
		HTTP2:              &http.HTTP2Config{SendPingTimeout: silence, PingTimeout: pingTimeout},
	}
}
