// Package cloud joins the stages with AWS: configuration from the environment, S3 and DynamoDB as stores, Step Functions
// as the word on who is alive, Secrets Manager for credentials and SNS for alerts.
package cloud

import (
	"errors"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	storecloud "github.com/onceload/onceload/pkg/store/cloud"
)

// The environment variables of a function, beside those that name the stores (see [storecloud.ParseNames]) and the
// SDK's own. All are optional.
const (
	EnvAlertsTopic  = "ONCELOAD_ALERTS_TOPIC_ARN" // SNS topic that is told of failures; none: nobody is
	EnvSecretPrefix = "ONCELOAD_SECRET_PREFIX"    // what stands before a secret's name in Secrets Manager
	EnvMargin       = "ONCELOAD_MARGIN"           // how long before its time limit a function stops, like 10s
)

// Config is the configuration of a function.
type Config struct {
	Stores       storecloud.Names
	AlertsTopic  string
	SecretPrefix string
	Margin       time.Duration // 0 = the stages' default
}

// ParseConfig reads the environment; all faults are one error of kind Usage.
func ParseConfig(lookup func(string) (string, bool)) (Config, error) {
	var c Config
	var faults []error
	names, err := storecloud.ParseNames(lookup)
	if err != nil {
		faults = append(faults, err)
	}
	c.Stores = names
	c.AlertsTopic, _ = lookup(EnvAlertsTopic)
	c.SecretPrefix, _ = lookup(EnvSecretPrefix)
	if v, _ := lookup(EnvMargin); v != "" {
		c.Margin, err = time.ParseDuration(v)
		if err != nil || c.Margin <= 0 {
			faults = append(faults, etl.Errorf(etl.Usage, "environment variable %s: %q is not a time like 10s", EnvMargin, v))
		}
	}
	return c, errors.Join(faults...)
}
