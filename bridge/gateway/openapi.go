package gateway

import (
	_ "embed"
	"net/http"
)

//go:embed openapi.json
var openAPI []byte

// document answers with the OpenAPI document. It needs no token.
func document(c *call) (int, any, error) {
	if err := c.MayAnswer(); err != nil {
		return 0, nil, err
	}
	c.w.Header().Set("Content-Type", "application/json")
	c.w.Header().Set("Cache-Control", "public, max-age=300")
	c.w.WriteHeader(http.StatusOK)
	_, _ = c.w.Write(openAPI)
	return 0, nil, nil
}
