package cloud

// HTTPClient is the client that Load configures.
var HTTPClient = httpClient
