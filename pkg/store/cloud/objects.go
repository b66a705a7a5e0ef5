package cloud

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// partSize is the largest body sent in one request by Put, which holds that much in memory.
const partSize = 8 << 20

// Objects is a [store.Objects] in an S3 bucket.
type Objects struct {
	Retry  Retry
	client *s3.Client
	bucket string
}

// NewObjects returns the bucket of that name, which exists.
func NewObjects(client *s3.Client, bucket string) *Objects {
	return &Objects{Retry: DefaultRetry(), client: client, bucket: bucket}
}

// call checks the key, runs f with bounded repeats, and says where an error happened. f returns errors of the SDK.
func (o *Objects) call(ctx context.Context, op, key string, f func() error) error {
	err := store.CheckObjectKey(key)
	if err == nil {
		err = o.Retry.do(ctx, func() error { return classify(ctx, f()) })
	}
	if err != nil {
		return fmt.Errorf("%s s3://%s/%s: %w", op, o.bucket, key, err)
	}
	return nil
}

// PutOnce implements [store.Objects] by `If-None-Match: *`.
func (o *Objects) PutOnce(ctx context.Context, key string, body []byte) error {
	return o.call(ctx, "put once", key, func() error {
		_, err := o.client.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &o.bucket, Key: &key, Body: bytes.NewReader(body), IfNoneMatch: aws.String("*"),
		})
		return err
	})
}

// Put implements [store.Objects]: one request, or a multipart upload if the body is longer than a part. Parts of an
// upload that could not be aborted are left to the bucket's lifecycle rule.
func (o *Objects) Put(ctx context.Context, key string, body io.Reader) error {
	err := store.CheckObjectKey(key)
	if err == nil {
		err = o.put(ctx, key, body)
	}
	if err != nil {
		return fmt.Errorf("put s3://%s/%s: %w", o.bucket, key, err)
	}
	return nil
}

func (o *Objects) put(ctx context.Context, key string, body io.Reader) error {
	// One byte more than a part tells whether another follows. The buffer grows with the body.
	var first bytes.Buffer
	if _, err := io.Copy(&first, io.LimitReader(body, partSize+1)); err != nil {
		return err
	}
	if first.Len() <= partSize {
		return o.Retry.do(ctx, func() error {
			_, err := o.client.PutObject(ctx, &s3.PutObjectInput{Bucket: &o.bucket, Key: &key, Body: bytes.NewReader(first.Bytes())})
			return classify(ctx, err)
		})
	}
	return o.upload(ctx, key, io.MultiReader(&first, body))
}

func (o *Objects) upload(ctx context.Context, key string, body io.Reader) (err error) {
	var upload *s3.CreateMultipartUploadOutput
	err = o.Retry.do(ctx, func() (err error) {
		upload, err = o.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{
			Bucket: &o.bucket, Key: &key, ChecksumAlgorithm: types.ChecksumAlgorithmCrc32,
		})
		return classify(ctx, err)
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.abort(ctx, key, upload.UploadId))
		}
	}()
	var parts []types.CompletedPart
	var buf bytes.Buffer
	buf.Grow(partSize + bytes.MinRead)
	for {
		// Copy, not ReadFull: a body that ends with an ErrUnexpectedEOF of its own has failed.
		buf.Reset()
		if _, err := io.Copy(&buf, io.LimitReader(body, partSize)); err != nil {
			return err
		}
		if buf.Len() == 0 {
			break
		}
		part, err := o.uploadPart(ctx, key, upload.UploadId, int32(len(parts)+1), buf.Bytes())
		if err != nil {
			return err
		}
		parts = append(parts, part)
	}
	return o.Retry.do(ctx, func() error {
		_, err := o.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
			Bucket: &o.bucket, Key: &key, UploadId: upload.UploadId, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
		})
		return classify(ctx, err)
	})
}

func (o *Objects) uploadPart(ctx context.Context, key string, upload *string, number int32, body []byte) (types.CompletedPart, error) {
	part := types.CompletedPart{PartNumber: &number}
	err := o.Retry.do(ctx, func() error {
		out, err := o.client.UploadPart(ctx, &s3.UploadPartInput{
			Bucket: &o.bucket, Key: &key, UploadId: upload, PartNumber: &number, Body: bytes.NewReader(body),
			ChecksumAlgorithm: types.ChecksumAlgorithmCrc32,
		})
		if err == nil {
			part.ETag, part.ChecksumCRC32 = out.ETag, out.ChecksumCRC32
		}
		return classify(ctx, err)
	})
	return part, err
}

// abort drops the parts of an upload, also when the context has ended.
func (o *Objects) abort(ctx context.Context, key string, upload *string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, err := o.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &o.bucket, Key: &key, UploadId: upload})
	if err != nil {
		return fmt.Errorf("abort the upload: %w", classify(ctx, err))
	}
	return nil
}

// Get implements [store.Objects].
func (o *Objects) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	var out *s3.GetObjectOutput
	err := o.call(ctx, "get", key, func() (err error) {
		out, err = o.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &o.bucket, Key: &key})
		return err
	})
	if err != nil {
		return nil, err
	}
	return &reader{ctx: ctx, body: out.Body, name: o.bucket + "/" + key}, nil
}

// reader classifies the errors of a body.
type reader struct {
	ctx  context.Context
	body io.ReadCloser
	name string
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.body.Read(p)
	if err == io.EOF { //nolint:errorlint // a wrapped EOF is a failure, not the end
		return n, io.EOF
	}
	if err != nil {
		err = fmt.Errorf("read s3://%s: %w", r.name, classify(r.ctx, err))
	}
	return n, err
}

func (r *reader) Close() error { return r.body.Close() }

// GetRange implements [store.Objects].
func (o *Objects) GetRange(ctx context.Context, key string, off, n int64) (body []byte, err error) {
	if err := store.CheckRange(off, n); err != nil {
		return nil, fmt.Errorf("get s3://%s/%s: %w", o.bucket, key, err)
	}
	if n == 0 { // there is no such range in HTTP
		_, err := o.Head(ctx, key)
		return nil, err
	}
	span := fmt.Sprintf("bytes=-%d", n)
	if off >= 0 {
		span = fmt.Sprintf("bytes=%d-%d", off, off+min(n-1, math.MaxInt64-off))
	}
	err = o.call(ctx, "get", key, func() (err error) {
		out, err := o.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &o.bucket, Key: &key, Range: &span})
		if errorCode(err) == "InvalidRange" { // it begins at or beyond the end
			body = nil
			return nil
		}
		if err != nil {
			return err
		}
		body, err = io.ReadAll(out.Body)
		return errors.Join(err, out.Body.Close())
	})
	return body, err
}

// Head implements [store.Objects].
func (o *Objects) Head(ctx context.Context, key string) (store.Info, error) {
	var out *s3.HeadObjectOutput
	err := o.call(ctx, "head", key, func() (err error) {
		out, err = o.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &o.bucket, Key: &key})
		return err
	})
	if err != nil {
		return store.Info{}, err
	}
	return store.Info{Key: key, Size: aws.ToInt64(out.ContentLength)}, nil
}

// List implements [store.Objects].
func (o *Objects) List(ctx context.Context, prefix string) iter.Seq2[store.Info, error] {
	return func(yield func(store.Info, error) bool) {
		fail := func(err error) { yield(store.Info{}, fmt.Errorf("list s3://%s/%s: %w", o.bucket, prefix, err)) }
		if err := store.CheckPrefix(prefix); err != nil {
			fail(err)
			return
		}
		pages := s3.NewListObjectsV2Paginator(o.client, &s3.ListObjectsV2Input{Bucket: &o.bucket, Prefix: &prefix})
		for last := ""; pages.HasMorePages(); {
			var page *s3.ListObjectsV2Output
			err := o.Retry.do(ctx, func() (err error) {
				page, err = pages.NextPage(ctx)
				return classify(ctx, err)
			})
			if err != nil {
				fail(err)
				return
			}
			for _, object := range page.Contents {
				key := aws.ToString(object.Key)
				if key <= last { // readers merge by this order: better no list than a wrong one
					fail(etl.Errorf(etl.StoreUnavailable, "the server lists %q after %q", key, last))
					return
				}
				last = key
				if !yield(store.Info{Key: key, Size: aws.ToInt64(object.Size)}, nil) {
					return
				}
			}
		}
	}
}
