//! The address of a cluster's metadata, as BookKeeper's own settings write it.

use std::fmt;
use std::str::FromStr;

use super::layout::LedgerLayout;

/// Where a cluster of Apache BookKeeper keeps its metadata: `zk://host:port,host:port/chroot/ledgers`.
///
/// The path is the root of the ledgers. BookKeeper's own form is read as well, in which the scheme may name the layout
/// (`zk+hierarchical://`, `zk+null://` for any) and `;` stands between the servers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MetadataServiceUri {
    servers: Vec<String>,
    root: String,
    layout: Option<LedgerLayout>,
}

/// Text that is no address of metadata, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{uri:?} is no address of metadata: {why}; write zk://host:port,host:port/ledgers")]
pub struct InvalidMetadataServiceUri {
    uri: String,
    why: &'static str,
}

impl MetadataServiceUri {
    /// The servers, each `host:port`.
    #[must_use]
    pub fn servers(&self) -> &[String] {
        &self.servers
    }

    /// The path of the root of the ledgers: a slash and names, without a slash at the end.
    #[must_use]
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The layout that the cluster must have; none if it may have any.
    #[must_use]
    pub const fn layout(&self) -> Option<LedgerLayout> {
        self.layout
    }
}

impl FromStr for MetadataServiceUri {
    type Err = InvalidMetadataServiceUri;

    fn from_str(uri: &str) -> Result<Self, Self::Err> {
        let invalid = |why| InvalidMetadataServiceUri { uri: uri.to_owned(), why };
        let (scheme, rest) = uri.split_once("://").ok_or_else(|| invalid("it has no scheme"))?;
        let layout = match scheme.split_once('+') {
            None if scheme == "zk" => None,
            Some(("zk", "null")) => None,
            Some(("zk", name)) => {
                Some(LedgerLayout::named(name).ok_or_else(|| invalid("its layout is not known"))?)
            }
            _ => return Err(invalid("its scheme is not zk")),
        };
        let (servers, path) = rest.split_once('/').ok_or_else(|| invalid("it has no path"))?;
        let servers = servers.split([',', ';']).map(server).collect::<Option<_>>();
        let names: Vec<_> = path.trim_end_matches('/').split('/').collect();
        let is_name =
            |name: &&str| !matches!(*name, "" | "." | "..") && !name.contains(char::is_control);
        if !names.iter().all(is_name) {
            return Err(invalid("its path is not made of names"));
        }
        Ok(Self {
            servers: servers.ok_or_else(|| invalid("a server is not host:port"))?,
            root: format!("/{}", names.join("/")),
            layout,
        })
    }
}

impl fmt::Display for MetadataServiceUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plus = self.layout.map_or("", |_| "+");
        let layout = self.layout.map_or("", LedgerLayout::name);
        write!(f, "zk{plus}{layout}://{}{}", self.servers.join(","), self.root)
    }
}

/// `host:port`; the port is ZooKeeper's own if there is none.
fn server(text: &str) -> Option<String> {
    let (host, port) = match text.rsplit_once(':') {
        // An IPv6 address stands in brackets.
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (text, CLIENT_PORT),
    };
    let fits = |host: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
        !host.is_empty() && host.bytes().all(is_part)
    };
    (port != 0 && fits(host)).then(|| format!("{host}:{port}"))
}

/// The port on which ZooKeeper serves clients unless it is told otherwise.
const CLIENT_PORT: u16 = 2181;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(uri: &str) -> MetadataServiceUri {
        uri.parse().expect(uri)
    }

    #[test]
    fn servers_root_and_layout_are_read_in_our_form_and_in_bookkeepers() {
        let ours = parsed("zk://a.example:2181,10.0.0.2:2182/chroot/ledgers");
        assert_eq!(ours.servers(), ["a.example:2181", "10.0.0.2:2182"]);
        assert_eq!((ours.root(), ours.layout()), ("/chroot/ledgers", None));
        let theirs = parsed("zk+hierarchical://a.example;10.0.0.2:2182/ledgers/");
        assert_eq!(theirs.servers(), ["a.example:2181", "10.0.0.2:2182"]);
        assert_eq!(theirs.root(), "/ledgers");
        assert_eq!(theirs.layout(), Some(LedgerLayout::Hierarchical));
        assert_eq!(parsed("zk+null://a/ledgers").layout(), None);
        assert_eq!(parsed("zk://[::1]/l").servers(), ["[::1]:2181"]);
        assert_eq!(parsed("zk://[::1]:99/l").servers(), ["[::1]:99"]);
    }

    #[test]
    fn an_address_is_shown_as_it_is_read() {
        for uri in ["zk://a:2181,b:2182/ledgers", "zk+longhierarchical://a:1/x/ledgers"] {
            assert_eq!(parsed(uri).to_string(), uri);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_reason() {
        for (uri, why) in [
            ("127.0.0.1:2181/ledgers", "no scheme"),
            ("etcd://a/ledgers", "scheme is not zk"),
            ("zk+round://a/ledgers", "layout is not known"),
            ("zk://a:2181", "no path"),
            ("zk://a:2181/", "path is not made of names"),
            ("zk://a:2181//ledgers", "path is not made of names"),
            ("zk://a:2181/../ledgers", "path is not made of names"),
            ("zk:///ledgers", "not host:port"),
            ("zk://a:b/ledgers", "not host:port"),
            ("zk://a,,b/ledgers", "not host:port"),
            ("zk://user@a/ledgers", "not host:port"),
        ] {
            let refused = uri.parse::<MetadataServiceUri>().expect_err(uri).to_string();
            assert!(refused.contains(why) && refused.contains(uri), "{refused}");
        }
    }
}
