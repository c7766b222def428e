package crashpoint

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

const scriptDir = "../../lua"

// site is a place in a script's source that sends a command.
type site struct {
	file string // "retry" or "lib/exit"
	line string
	n    int // index among the sites of the file
}

func (s site) String() string { return fmt.Sprintf("%s: %s", s.file, s.line) }

var (
	sitePattern = regexp.MustCompile(`redis\.(p?call)\(`)
	usesPattern = regexp.MustCompile(`(?m)^-- Uses: (.*)$`)
)

// scriptNames returns the names of all scripts.
func scriptNames() []string {
	files, err := filepath.Glob(filepath.Join(scriptDir, "*.lua"))
	if err != nil || len(files) == 0 {
		panic(fmt.Sprintf("no scripts in %s: %v", scriptDir, err))
	}
	names := make([]string, len(files))
	for i, file := range files {
		names[i] = strings.TrimSuffix(filepath.Base(file), ".lua")
	}
	return names
}

// sitesOf returns the sites of a script in the order of the text that the server gets. The text may declare a function
// of lib more than once, because a rare function declares the functions that it needs.
func sitesOf(t testing.TB, name string) []site {
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join(scriptDir, file+".lua"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var all, sites []site
	for _, lib := range strings.Fields(usesPattern.FindStringSubmatch(read(name))[1]) {
		all = append(all, sitesIn("lib/"+lib, read("lib/"+lib))...)
	}
	shared := slices.Clone(all)
	all = append(all, sitesIn(name, read(name))...)
	for _, sent := range sitesIn(name, lua.Source(name)) {
		isSent := func(one site) bool { return one.line == sent.line }
		first := slices.IndexFunc(all, isSent)
		if again := slices.IndexFunc(shared, isSent); first < 0 && again >= 0 {
			sites = append(sites, shared[again])
			continue
		}
		if first < 0 {
			t.Fatalf("%s sends a command that is in none of its files: %s", name, sent.line)
		}
		sites, all = append(sites, all[first]), slices.Delete(all, first, first+1)
	}
	return sites
}

func sitesIn(file, text string) (sites []site) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "--") {
			continue
		}
		for range sitePattern.FindAllString(line, -1) {
			sites = append(sites, site{file, line, len(sites)})
		}
	}
	return sites
}

// preamble is Lua code that wraps redis for a script. Its two values for Sprintf are the number of a command, and the
// action that runs instead of this command: refuse or stand.
const preamble = `local redis = (function(server)
  local writes = {XADD = true, XDEL = true, XDELEX = true, XTRIM = true, XACK = true, XCLAIM = true, XAUTOCLAIM = true,
    XGROUP = true, ZADD = true, ZREM = true, ZREMRANGEBYSCORE = true, ZREMRANGEBYRANK = true, HSET = true,
    HSETNX = true, HDEL = true}
  local calls, wrote = 0, 'clean'
  local function reached(site, how, command)
    calls = calls + 1
    if calls ~= %d then
      if writes[command] then wrote = 'dirty' end
      return false
    end
    %s
    return true
  end
  local refusal = {err = 'ERR refused by the test'}
  return {
    error_reply = server.error_reply,
    acl_check_cmd = server.acl_check_cmd,
    REDIS_VERSION_NUM = server.REDIS_VERSION_NUM,
    sha1hex = server.sha1hex,
    call = function(site, ...)
      if reached(site, 'call', ...) then error(refusal) end
      return server.call(...)
    end,
    pcall = function(site, ...)
      if reached(site, 'pcall', ...) then return refusal end
      return server.pcall(...)
    end,
  }
end)(redis)
`

const (
	// refuse stores a note of the site under a key of the test, and lets the command fail.
	refuse = `server.call('SET', '%s', site .. ' ' .. wrote .. ' ' .. how .. ' ' .. command)`
	// stand keeps the server busy for some seconds at most. The test kills the server long before.
	stand = `for i = 1, 500000000 do end`
)

// interruption is a client that runs one script with a preamble. It does not change other commands.
type interruption struct {
	rueidis.Client
	sha, text string
}

func interrupt(c rueidis.Client, name string, step int, action string) *interruption {
	source := lua.Source(name)
	n := 0
	numbered := sitePattern.ReplaceAllStringFunc(source, func(found string) string {
		n++
		return fmt.Sprintf("%s%d, ", found, n-1)
	})
	return &interruption{Client: c, sha: shaOf(source), text: fmt.Sprintf(preamble, step, action) + numbered}
}

func shaOf(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

func (i *interruption) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	return i.Client.Do(ctx, i.with(cmd))
}

func (i *interruption) DoMulti(ctx context.Context, multi ...rueidis.Completed) []rueidis.RedisResult {
	with := make([]rueidis.Completed, len(multi))
	for n, cmd := range multi {
		with[n] = i.with(cmd)
	}
	return i.Client.DoMulti(ctx, with...)
}

func (i *interruption) with(cmd rueidis.Completed) rueidis.Completed {
	words := cmd.Commands()
	if words[0] != "EVALSHA" && words[0] != "EVALSHA_RO" || words[1] != i.sha {
		return cmd
	}
	return i.Client.B().Arbitrary("EVAL", i.text).Args(words[2:]...).Build()
}
