package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
)

// SecretPrefix begins every generated secret, so that scanners for leaked secrets can find it.
const SecretPrefix = "dst_"

const (
	secretRandom = 32                            // bytes
	secretBytes  = len(SecretPrefix) + (256+5)/6 // with the prefix, in base64
	digestBytes  = 2 * sha256.Size               // in hexadecimal digits
	digestDigits = "0123456789abcdef"            // the only characters of a digest
)

// digest is the SHA-256 of a secret. A secret itself is never stored.
type digest [sha256.Size]byte

func (d digest) String() string { return hex.EncodeToString(d[:]) }

// newSecret makes a secret and its digest.
func newSecret() (secret string, d digest) {
	random := make([]byte, secretRandom)
	_, _ = rand.Read(random) // never fails
	secret = SecretPrefix + base64.RawURLEncoding.EncodeToString(random)
	return secret, sha256.Sum256([]byte(secret))
}

// digestOf returns the digest of a secret. ok is false if the text cannot be a secret. Such a text, which may be long,
// is not hashed.
func digestOf(secret string) (d digest, ok bool) {
	isGenerated := len(secret) == secretBytes && strings.HasPrefix(secret, SecretPrefix)
	if !isGenerated && !isChosen(secret) {
		return d, false
	}
	return sha256.Sum256([]byte(secret)), true
}

// Bounds of a secret that the caller of AddChosen chose.
const (
	minChosenBytes = 20
	maxChosenBytes = 128
)

// isChosen reports whether a caller of AddChosen may choose the secret. A chosen secret never begins with SecretPrefix.
func isChosen(secret string) bool {
	if len(secret) < minChosenBytes || len(secret) > maxChosenBytes || strings.HasPrefix(secret, SecretPrefix) {
		return false
	}
	isForbidden := func(c rune) bool {
		isAlphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		return !isAlphanumeric && !strings.ContainsRune("-_.", c)
	}
	return !strings.ContainsFunc(secret, isForbidden)
}

// Digest returns the field of a secret's token in Redis. ok is false if the text cannot be a secret.
func Digest(secret string) (field string, ok bool) {
	d, ok := digestOf(secret)
	return d.String(), ok
}

// parseDigest reads a digest from the hexadecimal digits in Redis or a file.
func parseDigest(text string) (d digest, ok bool) {
	if len(text) != digestBytes || strings.Trim(text, digestDigits) != "" {
		return d, false
	}
	_, err := hex.Decode(d[:], []byte(text))
	return d, err == nil
}
