//! The stores that URLs name: those of this build, with the client of each.
//!
//! The client of a store tries a call again for a short time only: [`Bucket`](crate::bucket::Bucket) has the patience,
//! and knows which outcome is open.

use std::fmt::Display;
use std::sync::Arc;

use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreScheme};
use siltstone::{Error, ErrorKind, Result};

/// A store, and the front of the names of its objects.
pub(crate) type NamedStore = (Arc<dyn ObjectStore>, ObjectPath);

/// The name and value of an option.
type StoreOption = (String, String);

/// Makes a client from the variables of the environment, the URL and the options, in this order.
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
macro_rules! cloud {
    ($url:expr, $options:expr, $builder:ty) => {{
        use_ring();
        let mut builder = <$builder>::from_env().with_url($url).with_retry(short_retries());
        for (name, value) in $options {
            let key = name.to_ascii_lowercase().parse();
            builder = builder.with_config(key.map_err(|error| invalid($url, &error))?, value);
        }
        let store = builder.build().map_err(|error| invalid($url, &error))?;
        Ok((Arc::new(store), prefix_of($url)?))
    }};
}

/// Returns the store that `url` names.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a text that is no URL, a store that this build does not have, an option that the
/// store does not have, a password, a query or a fragment in the URL, or a configuration that lacks something.
pub(crate) fn store_at(url: &str, options: &[StoreOption]) -> Result<NamedStore> {
    check(url)?;
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
    match &*scheme {
        #[cfg(feature = "s3")]
        "s3" | "s3a" => cloud!(url, options, object_store::aws::AmazonS3Builder),
        #[cfg(feature = "gcs")]
        "gs" => cloud!(url, options, object_store::gcp::GoogleCloudStorageBuilder),
        #[cfg(feature = "azure")]
        "az" | "azure" | "abfs" | "abfss" => {
            cloud!(url, options, object_store::azure::MicrosoftAzureBuilder)
        }
        #[cfg(feature = "hdfs")]
        "hdfs" | "viewfs" => hdfs(url, options),
        _ => match feature_of(&scheme) {
            Some(feature) => Err(lacks(url, feature)),
            None => local(url, options),
        },
    }
}

/// Refuses what no store would use, before the URL is in a message: it may be a secret.
fn check(url: &str) -> Result<()> {
    let bare = url.split(['?', '#']).next().unwrap_or_default();
    let authority =
        bare.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or_default());
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    // A slash in a password ends the authority before its "@".
    let port = host.rsplit_once(':').map_or("", |(_, port)| port);
    let is_port = port.ends_with(']') || port.bytes().all(|b| b.is_ascii_digit());
    let has_password = user.contains(':') || !is_port;
    if has_password || bare.len() < url.len() {
        let message = "a URL with a password, a query or a fragment names no store of this build\n  \
                       credentials come from the environment, or from Remote::url_with";
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    Ok(())
}

fn local(url: &str, options: &[StoreOption]) -> Result<NamedStore> {
    let parsed = url.parse().map_err(|error| invalid(url, &error))?;
    if let Some((name, _)) = options.first() {
        return Err(invalid(url, &format!("the store has no options, and {name:?} was given")));
    }
    match ObjectStoreScheme::parse(&parsed) {
        Ok((ObjectStoreScheme::Local | ObjectStoreScheme::Memory, _)) => {}
        _ => return Err(invalid(url, &"its scheme is unknown")),
    }
    let (store, prefix) = object_store::parse_url(&parsed).map_err(|error| invalid(url, &error))?;
    Ok((Arc::from(store), prefix))
}

fn invalid(url: &str, error: &dyn Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("{url:?} names no store of this build: {error}"))
}

/// The feature of this crate that has the stores of a scheme.
fn feature_of(scheme: &str) -> Option<&'static str> {
    match scheme {
        "s3" | "s3a" => Some("s3"),
        "gs" => Some("gcs"),
        "az" | "azure" | "abfs" | "abfss" => Some("azure"),
        "hdfs" | "viewfs" => Some("hdfs"),
        _ => None,
    }
}

fn lacks(url: &str, feature: &str) -> Error {
    let message = format!(
        "{url:?} needs the feature \"{feature}\" of siltstone-remote,\n  \
         or of siltstone-cli for the command: this build does not have it"
    );
    Error::new(ErrorKind::InvalidArgument, message)
}

#[cfg(feature = "hdfs")]
fn hdfs(url: &str, options: &[StoreOption]) -> Result<NamedStore> {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let (_, path) = rest.split_once('/').unwrap_or((rest, ""));
    let root = &url[..url.len() - path.len()];
    let builder = hdfs_native_object_store::HdfsObjectStoreBuilder::new();
    let builder = builder.with_url(root).with_config(options.iter().cloned());
    let store = builder.build().map_err(|error| invalid(url, &error))?;
    let prefix = ObjectPath::from_url_path(path).map_err(|error| invalid(url, &error))?;
    Ok((Arc::new(store), prefix))
}

/// The path of a URL, after the bucket.
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
fn prefix_of(url: &str) -> Result<ObjectPath> {
    let parsed = url.parse().map_err(|error| invalid(url, &error))?;
    let (_, prefix) = ObjectStoreScheme::parse(&parsed).map_err(|error| invalid(url, &error))?;
    Ok(prefix)
}

/// The client of HTTP takes the process's provider of cryptography, and panics without one.
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
fn use_ring() {
    // It fails if the application has chosen one, which is then used.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
fn short_retries() -> object_store::RetryConfig {
    let retry_timeout = std::time::Duration::from_secs(10);
    object_store::RetryConfig { max_retries: 2, retry_timeout, ..Default::default() }
}
