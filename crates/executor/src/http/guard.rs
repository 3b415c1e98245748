//! Which addresses `http/request` may reach.
//!
//! A client asks for a URL, and this machine stands where the client does not: beside services on loopback, in private
//! networks, at the metadata service of a cloud. So only public addresses are reached unless the operator named others.
//! Names are resolved here and nowhere else: the address that was looked at is the one that is connected to.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use thiserror::Error;

/// Something besides public addresses that may be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpTarget {
    /// This machine.
    Loopback,
    /// Whatever this name leads to; lower case, without a dot at the end.
    Host(String),
    Network {
        address: IpAddr,
        prefix: u8,
    },
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum HttpTargetError {
    #[error("`{0}` is neither a host, nor a network such as 10.0.0.0/8, nor `loopback`")]
    Unknown(String),
    #[error("a network of this kind has a prefix of 0 to {bits} bits, not `{prefix}`")]
    Prefix { prefix: String, bits: u8 },
}

impl FromStr for HttpTarget {
    type Err = HttpTargetError;

    fn from_str(text: &str) -> Result<Self, HttpTargetError> {
        let unknown = || HttpTargetError::Unknown(text.to_owned());
        if text == "loopback" {
            return Ok(Self::Loopback);
        }
        if let Some((address, prefix)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| unknown())?;
            let bits = if address.is_ipv4() { 32 } else { 128 };
            let parsed = prefix.parse().ok().filter(|prefix| *prefix <= bits);
            let prefix = parsed.ok_or_else(|| HttpTargetError::Prefix { prefix: prefix.to_owned(), bits })?;
            return Ok(Self::Network { address, prefix });
        }
        if let Ok(address) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return Ok(Self::Network { address, prefix: if address.is_ipv4() { 32 } else { 128 } });
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let name = normal(text);
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(unknown());
        }
        Ok(Self::Host(name))
    }
}

impl fmt::Display for HttpTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => f.write_str("loopback"),
            Self::Host(name) => f.write_str(name),
            Self::Network { address, prefix } => write!(f, "{address}/{prefix}"),
        }
    }
}

fn normal(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

/// What kind of place an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Public,
    Loopback,
    Private,
    LinkLocal,
    Multicast,
    Unspecified,
    Reserved,
}

impl Place {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => Self::of_v6(address),
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        match address.octets() {
            [0, ..] => Self::Unspecified,
            [127, ..] => Self::Loopback,
            // Addresses of carrier-grade translation are private, too.
            [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Self::Private,
            [169, 254, ..] => Self::LinkLocal,
            [224..=239, ..] => Self::Multicast,
            [192, 0, 0 | 2, _] | [192, 88, 99, _] | [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _] | [240..=255, ..] => {
                Self::Reserved
            }
            _ => Self::Public,
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        let embedded = |high: u16, low: u16| Self::of_v4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
        match address.segments() {
            [0, 0, 0, 0, 0, 0, 0, 0] => Self::Unspecified,
            [0, 0, 0, 0, 0, 0, 0, 1] => Self::Loopback,
            // A translator makes these what they hold.
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => embedded(high, low),
            [0xfc00..=0xfdff, ..] => Self::Private,
            [0xfe80..=0xfeff, ..] => Self::LinkLocal,
            [0xff00..=0xffff, ..] => Self::Multicast,
            // Tunnels, examples, benchmarks.
            [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Self::Reserved,
            [0x2000..=0x3fff, ..] => Self::Public,
            _ => Self::Reserved,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "public",
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::LinkLocal => "link-local",
            Self::Multicast => "multicast",
            Self::Unspecified => "unspecified",
            Self::Reserved => "reserved",
        })
    }
}

/// A target that may not be reached.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{host} is refused: {address} is a {place} address; the executor's --http-allow {hint} would allow it, or `http_allow` in the config.toml of its home"
)]
pub(crate) struct Denied {
    host: String,
    address: IpAddr,
    place: Place,
    hint: String,
}

impl Denied {
    /// The refusal among the causes of an error, if it is one.
    pub(crate) fn among(error: &reqwest::Error) -> Option<Self> {
        let mut cause = error.source();
        while let Some(error) = cause {
            if let Some(denied) = error.downcast_ref::<Self>() {
                return Some(denied.clone());
            }
            cause = error.source();
        }
        None
    }
}

/// Decides about addresses. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct HttpGuard(Arc<Vec<HttpTarget>>);

impl HttpGuard {
    pub(crate) fn new(allowed: Vec<HttpTarget>) -> Self {
        Self(Arc::new(allowed))
    }

    /// Whether an address may be reached under this name.
    fn check(&self, host: &str, address: IpAddr) -> Result<(), Denied> {
        let place = Place::of(address);
        let is_allowed = |target: &HttpTarget| match target {
            HttpTarget::Loopback => place == Place::Loopback,
            HttpTarget::Host(name) => *name == normal(host),
            HttpTarget::Network { address: network, prefix } => holds(*network, *prefix, address),
        };
        if place == Place::Public || self.0.iter().any(is_allowed) {
            return Ok(());
        }
        let hint = if place == Place::Loopback { "loopback".to_owned() } else { address.to_canonical().to_string() };
        Err(Denied { host: host.to_owned(), address, place, hint })
    }

    /// Looks at a URL that holds an address, which is not resolved. Names are looked at when they are resolved.
    pub(crate) fn check_url(&self, url: &Url) -> Result<(), Denied> {
        let host = url.host_str().unwrap_or_default();
        match host.trim_start_matches('[').trim_end_matches(']').parse() {
            Ok(address) => self.check(host, address),
            Err(_) => Ok(()),
        }
    }

    /// The addresses of a name that may be reached; a refusal if there are only others.
    async fn resolve(self, host: String) -> Result<Addrs, Box<dyn Error + Send + Sync>> {
        let found: Vec<SocketAddr> = if is_local(&host) {
            // Not asked for: a host without /etc/hosts would ask a name server, which must not decide where this leads (RFC 6761, 6.3).
            [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)].map(|address| SocketAddr::new(address, 0)).into()
        } else {
            tokio::net::lookup_host((host.as_str(), 0)).await?.collect()
        };
        let (mut allowed, mut denied) = (Vec::new(), None);
        for address in found {
            match self.check(&host, address.ip()) {
                Ok(()) => allowed.push(address),
                Err(refusal) => denied = Some(refusal),
            }
        }
        match denied {
            Some(refusal) if allowed.is_empty() => Err(refusal.into()),
            _ => Ok(Box::new(allowed.into_iter())),
        }
    }
}

impl Resolve for HttpGuard {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(self.clone().resolve(name.as_str().to_owned()))
    }
}

/// Whether a name is reserved for the machine itself.
fn is_local(host: &str) -> bool {
    let host = normal(host);
    host == "localhost" || host.ends_with(".localhost")
}

fn holds(network: IpAddr, prefix: u8, address: IpAddr) -> bool {
    let shared = |bits: u32, difference: u128| difference.checked_shr(bits - u32::from(prefix)).unwrap_or(0) == 0;
    match (network, address, address.to_canonical()) {
        (IpAddr::V4(network), _, IpAddr::V4(address)) => shared(32, u128::from(network.to_bits() ^ address.to_bits())),
        (IpAddr::V6(network), IpAddr::V6(address), _) => shared(128, network.to_bits() ^ address.to_bits()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn guard(targets: &[&str]) -> HttpGuard {
        HttpGuard::new(targets.iter().map(|target| target.parse().unwrap()).collect())
    }

    #[test]
    fn inner_addresses_are_denied_in_every_spelling() {
        for text in [
            "127.0.0.1",
            "127.255.255.254",
            "::1",
            "::ffff:127.0.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "fc00::1",
            "fd12::1",
            "224.0.0.1",
            "239.1.1.1",
            "ff02::1",
            "255.255.255.255",
            "240.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a00:1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2001:0:4136:e378::1",
            "2001:db8::1",
            "::127.0.0.1",
            "100::1",
            "192.0.0.8",
            "198.18.0.1",
            "192.0.2.1",
            "198.51.100.1",
            "203.0.113.9",
            "3fff::1",
            "4000::1",
        ] {
            assert!(guard(&[]).check("h", address(text)).is_err(), "{text}");
        }
        for text in
            ["1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "169.253.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
        {
            assert_eq!(guard(&[]).check("h", address(text)), Ok(()), "{text}");
        }
    }

    #[test]
    fn urls_are_read_as_the_client_reads_them() {
        for text in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://0x7f000001/",
            "http://2130706433/",
            "http://0177.0.0.1/",
            "http://[::1]:80/",
            "http://[::ffff:7f00:1]/",
            "http://u:p@127.0.0.1/",
            "http://127.0.0.1./",
            "http://①②⑦.0.0.1/",
        ] {
            assert!(guard(&[]).check_url(&Url::parse(text).unwrap()).is_err(), "{text}");
        }
        assert!(guard(&[]).check_url(&Url::parse("http://1.1.1.1/").unwrap()).is_ok());
    }

    #[test]
    fn what_the_operator_named_is_allowed_and_nothing_beside_it() {
        let guard = guard(&["loopback", "10.1.0.0/16", "Intranet.Example.", "fd00::/8", "192.168.1.5"]);
        for (host, text) in [
            ("x", "127.0.0.1"),
            ("x", "::1"),
            ("x", "10.1.2.3"),
            ("x", "::ffff:10.1.2.3"),
            ("intranet.example", "172.16.0.9"),
            ("x", "fd00::1"),
            ("x", "192.168.1.5"),
        ] {
            assert_eq!(guard.check(host, address(text)), Ok(()), "{host} {text}");
        }
        for text in ["10.2.0.1", "fc00::1", "192.168.1.6", "169.254.169.254", "0.0.0.0"] {
            assert!(guard.check("x", address(text)).is_err(), "{text}");
        }
        let text = guard.check("metadata", address("169.254.169.254")).unwrap_err().to_string();
        assert_eq!(
            text,
            "metadata is refused: 169.254.169.254 is a link-local address; the executor's --http-allow 169.254.169.254 would allow it, \
             or `http_allow` in the config.toml of its home"
        );
        assert!(holds(address("0.0.0.0"), 0, address("9.9.9.9")) && holds(address("::"), 0, address("fd00::1")));
    }

    #[test]
    fn targets_are_checked() {
        for text in ["", "a b", "10.0.0.0/33", "x/8", "::/129", "*", "http://x"] {
            assert!(text.parse::<HttpTarget>().is_err(), "{text}");
        }
        for text in ["loopback", "10.0.0.0/8", "fd00::/8", "box.example"] {
            assert_eq!(text.parse::<HttpTarget>().unwrap().to_string(), text);
        }
    }

    #[tokio::test]
    async fn no_name_server_is_asked_for_this_machine() {
        for host in ["localhost", "LocalHost.", "app.localhost"] {
            let found: Vec<SocketAddr> = guard(&["loopback"]).resolve(host.into()).await.unwrap().collect();
            assert!(!found.is_empty() && found.iter().all(|address| address.ip().is_loopback()), "{host}: {found:?}");
            assert!(guard(&[]).resolve(host.into()).await.is_err(), "{host}");
        }
        assert!(!is_local("notlocalhost") && !is_local("localhost.example"));
    }

    #[tokio::test]
    async fn a_name_is_judged_by_what_it_leads_to() {
        let refused = guard(&[]).resolve("localhost".into()).await.err().unwrap();
        assert!(refused.downcast_ref::<Denied>().is_some_and(|denied| denied.place == Place::Loopback));
        for allowed in ["loopback", "localhost"] {
            assert!(guard(&[allowed]).resolve("localhost".into()).await.unwrap().all(|address| address.ip().is_loopback()));
        }
    }
}
