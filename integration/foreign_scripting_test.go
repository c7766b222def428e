package integration

import (
	"os/exec"
	"testing"
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
	if out, err := exec.Command("ruby", "-e", `require "redis"`).CombinedOutput(); err != nil {
		t.Fatalf("no ruby that can load redis: install Debian's ruby and ruby-redis: %v\n%s", err, out)
	}
	return "ruby"
}

func phpWithRedis(t *testing.T) string {
	t.Helper()
	if out, err := exec.Command("php", "-r", `exit(extension_loaded("redis") && extension_loaded("pcntl") ? 0 : 1);`).CombinedOutput(); err != nil {
		t.Fatalf("no php with the extensions redis and pcntl: install Debian's php-cli and php-redis: %v\n%s", err, out)
	}
	return "php"
}
