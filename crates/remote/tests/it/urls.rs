//! URLs of stores, known and unknown to this build. Nothing is connected to.

use remote::Remote;
use siltstone::ErrorKind;

/// The message of a URL that is refused as an invalid argument.
fn refused(url: &str, options: &[(&str, &str)]) -> String {
    let error = Remote::url_with(url, options.iter().copied()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    error.to_string()
}

#[test]
fn a_url_of_a_store_that_this_build_lacks_names_the_feature() {
    let stores = [
        ("s3://bucket/prefix", "s3", cfg!(feature = "s3")),
        ("gs://bucket/prefix", "gcs", cfg!(feature = "gcs")),
        ("az://container/prefix", "azure", cfg!(feature = "azure")),
        ("hdfs://localhost:9000/prefix", "hdfs", cfg!(feature = "hdfs")),
        // The scheme of a URL may be in any case.
        ("S3://bucket/prefix", "s3", cfg!(feature = "s3")),
    ];
    for (url, feature, is_built) in stores {
        if !is_built {
            let message = refused(url, &[]);
            assert!(message.contains(&format!("feature \"{feature}\"")), "{message}");
        }
    }
}

#[test]
fn a_url_of_no_store_and_an_option_of_no_store_are_refused() {
    for url in ["nowhere", "http://host/prefix", "ftp://host/prefix", ""] {
        assert!(refused(url, &[]).contains("no store"), "{url}");
    }
    assert!(refused("memory:///", &[("aws_region", "x")]).contains("aws_region"));
    if cfg!(feature = "s3") {
        assert!(refused("s3://bucket/prefix", &[("aws_regoin", "x")]).contains("aws_regoin"));
    }
}

#[test]
fn what_no_store_uses_is_refused_and_not_shown() {
    for url in [
        "s3://key:hidden@bucket/prefix",
        "s3://key:hidden/with/slashes@bucket/prefix",
        "az://container/prefix?sig=hidden",
        "gs://bucket/prefix#hidden",
        "hdfs://user:hidden@namenode:9000/prefix",
        "file:///folder?hidden",
        "http://user:hidden@host/prefix",
    ] {
        let message = refused(url, &[]);
        assert!(message.contains("Remote::url_with") && !message.contains("hidden"), "{message}");
    }
}

#[test]
fn a_url_without_a_bucket_is_refused() {
    for scheme in ["s3:", "gs:", "az:"] {
        for rest in ["", "//", "///prefix"] {
            refused(&format!("{scheme}{rest}"), &[]);
        }
    }
}

#[test]
#[cfg(feature = "s3")]
fn options_replace_the_environment() {
    let options = [
        ("AWS_ACCESS_KEY_ID", "key"),
        ("aws_secret_access_key", "secret"),
        ("aws_endpoint_url", "http://127.0.0.1:1"),
        ("aws_allow_http", "true"),
    ];
    let remote = Remote::url_with("s3://bucket/a/prefix", options).unwrap();
    // No server is there: the message has the address that was asked.
    let failed = remote.store().get("name").unwrap_err();
    assert_eq!(failed.kind, remote::StoreErrorKind::Transient, "{failed}");
    assert!(failed.message.contains("127.0.0.1:1/bucket/a/prefix/name"), "{failed}");
    for (url, name) in [
        ("S3://bucket", "bucket/name"),
        ("s3://bucket/", "bucket/name"),
        ("s3://bucket/a/", "bucket/a/name"),
        ("s3://bucket/a/../../b", "bucket/b/name"),
    ] {
        let failed = Remote::url_with(url, options).unwrap().store().get("name").unwrap_err();
        assert!(failed.message.contains(&format!("127.0.0.1:1/{name}")), "{url}: {failed}");
    }
}
