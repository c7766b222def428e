package integration

import (
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// scriptingLanguages are further ones, as in languages.
func scriptingLanguages(t *testing.T) []language {
	t.Helper()
	return []language{
		{"ruby", "complete", []string{rubyWithRedis(t), "../examples/ruby/conformance.rb"}},
		{"php", "complete", []string{phpWithRedis(t), "../examples/php/conformance.php"}},
	}
}

func rubyWithRedis(t *testing.T) string {
	t.Helper()
	redistest.Install(t, "ruby that can load redis", func() bool { return firstThatRuns("", []string{"ruby"}, "-e", `require "redis"`) != "" }, "ruby", "ruby-redis")
	return "ruby"
}

func phpWithRedis(t *testing.T) string {
	t.Helper()
	redistest.Install(t, "php with the extensions redis and pcntl", func() bool {
		return firstThatRuns("", []string{"php"}, "-r", `exit(extension_loaded("redis") && extension_loaded("pcntl") ? 0 : 1);`) != ""
	}, "php-cli", "php-redis")
	return "php"
}
