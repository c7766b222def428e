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

// notPublic are the networks outside the public internet, and the networks that tunnel to such networks, that package
// netip does not know.
var notPublic = prefixes(
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

// isPublic reports whether an address belongs to the public internet.
func isPublic(addr netip.Addr) bool {
	contains := func(p netip.Prefix) bool { return p.Contains(addr) }
	return addr.IsGlobalUnicast() && !addr.IsPrivate() && !slices.ContainsFunc(notPublic, contains)
}

// mayDial reports whether a target may connect to an address.
func (t Target) mayDial(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	contains := func(p netip.Prefix) bool { return unmap(p).Contains(addr) }
	return isPublic(addr) || slices.ContainsFunc(t.Networks, contains)
}

// unmap returns the IPv4 network of an IPv4-mapped network (::ffff:…), and any other network unchanged.
func unmap(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= mappedBits {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mappedBits)
	}
	return p
}

const mappedBits = 96 // length of the prefix ::ffff:0:0, before the IPv4 address

const (
	dialTimeout        = 5 * time.Second
	idleTimeout        = 90 * time.Second
	answerHeaderBytes  = 64 << 10
	keepAlive          = 30 * time.Second
	maxIdleConnections = 100 // to one target

	// An HTTP/2 connection is pinged after pingAfter without a frame. It is closed if no answer comes within
	// pingTimeout.
	pingAfter, pingTimeout = 15 * time.Second, 5 * time.Second
)

// newTransport returns the transport for a target's requests. It checks each address when it dials, after the lookup of
// the name, so the check holds although a name may change its address. It uses no proxy, because the check would see
// only the address of the proxy.
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
		MaxIdleConnsPerHost: min(t.Concurrency, maxIdleConnections), MaxResponseHeaderBytes: answerHeaderBytes,
		DisableCompression: true,
		HTTP2:              &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
}
