package cloud

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/smithy-go"

	"github.com/onceload/onceload/pkg/etl"
)

// secretAge is how long a secret is used before it is asked for again: a rotated one takes effect within that time.
const secretAge = 5 * time.Minute

// Secrets reads credentials from Secrets Manager and keeps each for five minutes. It implements [stage.Secrets].
type Secrets struct {
	Now    func() time.Time
	client *secretsmanager.Client
	prefix string

	mu   sync.Mutex
	kept map[string]keptSecret
}

type keptSecret struct {
	value string
	until time.Time
}

// NewSecrets makes the client. A secret is found under prefix and name.
func NewSecrets(cfg aws.Config, prefix string) *Secrets {
	return &Secrets{
		Now:    time.Now,
		client: secretsmanager.NewFromConfig(cfg), prefix: prefix, kept: map[string]keptSecret{},
	}
}

// Secret implements [stage.Secrets]: the whole SecretString is the value.
func (s *Secrets) Secret(ctx context.Context, name string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.kept[name]; s.Now().Before(k.until) {
		return k.value, nil
	}
	id := s.prefix + name
	out, err := s.client.GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{SecretId: &id})
	if err != nil {
		return "", secretError(ctx, id, err)
	}
	if out.SecretString == nil {
		return "", etl.Errorf(etl.SourceRejected, "secret %s in Secrets Manager is binary: store it as text", id)
	}
	s.kept[name] = keptSecret{value: *out.SecretString, until: s.Now().Add(secretAge)}
	return *out.SecretString, nil
}

func secretError(ctx context.Context, id string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		switch api.ErrorCode() {
		case "ResourceNotFoundException":
			return etl.Errorf(etl.SourceRejected, "no secret %s in Secrets Manager: create it with the credential as its text: %w", id, err)
		case "AccessDeniedException":
			return etl.Errorf(etl.SourceRejected, "secret %s in Secrets Manager may not be read: allow secretsmanager:GetSecretValue: %w", id, err)
		case "InvalidRequestException", "InvalidParameterException", "DecryptionFailure":
			return etl.Errorf(etl.SourceRejected, "secret %s in Secrets Manager cannot be read: %w", id, err)
		}
	}
	return etl.Errorf(etl.StoreUnavailable, "read secret %s from Secrets Manager: %w", id, err)
}
