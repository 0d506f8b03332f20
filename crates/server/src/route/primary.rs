//! [`primary`]: a connection to the primary among nodes, for a mover.

use std::io;
use std::time::Duration;

use siltstone::Commit;

use super::cluster::{ANSWER, primary_position};
use super::dialer::Dialer;
use super::link::Link;

/// Connects to the primary among `addresses`: that of the latest epoch. Name and password log in, if they are given.
pub(crate) async fn primary(
    dialer: &Dialer,
    addresses: &[String],
    login: Option<&(String, String)>,
    limit: Duration,
) -> Option<Link> {
    let mut found: Option<(Commit, Link)> = None;
    for address in addresses {
        let asked = async {
            let mut link = Link::connect(dialer, address, limit.min(ANSWER)).await?;
            if let Some((name, password)) = login {
                link.call(&["AUTH", name, password]).await?;
            }
            let info = link.call(&["INFO"]).await?;
            link.limit = limit;
            io::Result::Ok((primary_position(&info), link))
        };
        let Ok((Some(position), link)) = asked.await else { continue };
        if found.as_ref().is_none_or(|(other, _)| other.epoch < position.epoch) {
            found = Some((position, link));
        }
    }
    found.map(|(_, link)| link)
}
