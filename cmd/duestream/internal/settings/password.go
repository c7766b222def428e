package settings

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// Passwords returns a function that sets the passwords of the environment. The environment is safer than a URL, which
// process lists and shell histories show. A password in the URL takes precedence. The function calls used with the
// source of each password that it sets.
func (c *Connection) Passwords(used func(source string)) (func(*rueidis.ClientOption), error) {
	redis, err := password("DUESTREAM_REDIS_PASSWORD", c.RedisPassword, c.RedisPasswordFile)
	if err != nil {
		return nil, err
	}
	sentinel, err := password("DUESTREAM_SENTINEL_PASSWORD", c.SentinelPassword, c.SentinelPasswordFile)
	if err != nil {
		return nil, err
	}
	return func(opt *rueidis.ClientOption) {
		if opt.Password == "" && redis != "" {
			opt.Password = redis
			used(origin("DUESTREAM_REDIS_PASSWORD", c.RedisPasswordFile))
		}
		if opt.Sentinel.Password == "" && opt.Sentinel.MasterSet != "" && sentinel != "" {
			opt.Sentinel.Password = sentinel
			used(origin("DUESTREAM_SENTINEL_PASSWORD", c.SentinelPasswordFile))
		}
	}, nil
}

// password returns the password of a variable or a file. Its errors never contain the password.
func password(name, value, file string) (string, error) {
	if file == "" {
		return value, nil
	}
	if value != "" {
		return "", usage.Errorf("%s and %s_FILE are set: only one may be", name, name)
	}
	text, err := readSecret(file)
	if err != nil {
		return "", usage.Errorf("%s_FILE: %w", name, err)
	}
	if value = strings.TrimRight(string(text), "\r\n"); value == "" {
		return "", usage.Errorf("%s_FILE: %s is empty", name, file)
	}
	return value, nil
}

// origin names the source of a password: the variable, or the file that the variable name_FILE names.
func origin(name, file string) string {
	if file == "" {
		return name
	}
	return fmt.Sprintf("%s (%s_FILE)", file, name)
}

const maxSecretBytes = 64 << 10

// readSecret reads a small file. The file may be a pipe, as in `<(pass show redis)`. A named pipe without a writer
// counts as empty, because no signal could end the wait for a writer. An endless file, such as /dev/zero, is refused.
func readSecret(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	if err == nil && len(text) > maxSecretBytes {
		err = fmt.Errorf("%s has more than %d bytes: this is no password", file, maxSecretBytes)
	}
	return text, err
}
