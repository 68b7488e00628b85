//! The commands on topics.

use clap::{Args, Subcommand};
use georepl::cursor::NAME_BYTES_MAX;

use super::region::{Output, Place, Rule, consent};
use crate::service::words::{Bound, Consent};

/// A command on topics.
#[derive(Subcommand)]
pub(crate) enum TopicCommand {
    /// Lists all topics.
    #[command(after_help = "Examples:\n  georepl topic list --region data/west")]
    List {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        output: Output,
    },
    /// Deletes what every cursor has acknowledged and retention has let go.
    #[command(after_help = "\
Examples:
  georepl topic trim --region data/west orders
Entries stay for ever unless topic retention says otherwise. They go by whole ledgers; the one that
is being written stays.")]
    Trim(OneTopic),
    /// Sets for how long a topic keeps what every cursor has acknowledged, and deletes what is left
    /// over; without --time and --size, says it.
    #[command(after_help = "\
Examples:
  georepl topic retention --region data/west orders
  georepl topic retention --region data/west orders --time 7d --size 10GiB --dry-run
  georepl topic retention --region data/west orders --time forever --size unlimited
Entries go when they are older than the time, or when what follows them has at least the size. They
go by whole ledgers; the one that is being written stays. What is set is stored with the topic.")]
    Retention {
        #[command(flatten)]
        one: OneTopic,
        /// How long: a number with s, m, h, d or w, 0, or forever [default: as it is]
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        time: Option<Bound>,
        /// How much: a number of bytes or one with KiB, MiB, GiB or TiB, or unlimited [default: as it is]
        #[arg(long, value_name = "SIZE", value_parser = bytes)]
        size: Option<Bound>,
        #[command(flatten)]
        rule: Rule,
    },
    /// Ends a topic for ever: it takes no more messages.
    #[command(after_help = "Examples:\n  georepl topic terminate --region data/west orders --yes")]
    Terminate(EndedTopic),
    /// Deletes a topic with its cursors and all it holds.
    #[command(after_help = "Examples:\n  georepl topic delete --region data/west orders --yes")]
    Delete(EndedTopic),
}

/// A topic.
#[derive(Args)]
pub(crate) struct OneTopic {
    #[command(flatten)]
    pub(crate) place: Place,
    /// The topic
    #[arg(value_parser = topic)]
    pub(crate) topic: String,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// A topic that is to end.
#[derive(Args)]
pub(crate) struct EndedTopic {
    #[command(flatten)]
    pub(crate) one: OneTopic,
    /// It is meant, although it cannot be undone
    #[arg(long)]
    yes: bool,
}

impl EndedTopic {
    pub(crate) fn consent(&self) -> Consent {
        consent(self.yes)
    }
}

fn seconds(text: &str) -> Result<Bound, String> {
    let units = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400), ("w", 604_800)];
    match text {
        "forever" => Ok(Bound::None),
        "0" => Ok(Bound::AtMost(0)),
        text => scaled(text, &units)
            .ok_or_else(|| "write a number with s, m, h, d or w, such as 7d, or forever".into()),
    }
}

fn bytes(text: &str) -> Result<Bound, String> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40), ("", 1)];
    match text {
        "unlimited" => Ok(Bound::None),
        text => scaled(text, &units).ok_or_else(|| {
            "write a number of bytes, or one with KiB, MiB, GiB or TiB, such as 10GiB, or unlimited".into()
        }),
    }
}

/// A number with the first of these units that it ends with.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<Bound> {
    let unit = |(name, scale): &(&str, u64)| Some((text.strip_suffix(name)?, *scale));
    let (number, scale) = units.iter().find_map(unit)?;
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| number.parse::<u64>().ok()).flatten()?;
    number.checked_mul(scale).map(Bound::AtMost)
}

/// The full name of a topic, as Pulsar completes short ones.
pub(super) fn topic(text: &str) -> Result<String, String> {
    let parts: Vec<_> = text.split('/').collect();
    let name = match parts[..] {
        _ if text.starts_with("persistent://") && parts.len() >= 5 => text.to_owned(),
        [name] if !name.is_empty() => format!("persistent://public/default/{name}"),
        [tenant, namespace, name]
            if !tenant.contains(':') && parts.iter().all(|part| !part.is_empty()) =>
        {
            format!("persistent://{tenant}/{namespace}/{name}")
        }
        _ => {
            let forms = "a name, tenant/namespace/name or persistent://tenant/namespace/name";
            return Err(format!("write {forms}"));
        }
    };
    match name.len() {
        0..=NAME_BYTES_MAX => Ok(name),
        bytes => Err(format!(
            "the full name of a topic has at most {NAME_BYTES_MAX} bytes, and this one has {bytes}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_retention_are_numbers_with_units() {
        let at_most = |limit| Ok(Bound::AtMost(limit));
        assert_eq!([seconds("forever"), bytes("unlimited")], [Ok(Bound::None), Ok(Bound::None)]);
        assert_eq!([seconds("0"), seconds("90s"), seconds("2w")], [0, 90, 1_209_600].map(at_most));
        assert_eq!([bytes("0"), bytes("17"), bytes("3KiB")], [0, 17, 3_072].map(at_most));
        for bad in ["", "7", "d", "-1d", "+1d", "1.5h", "1 d", "7D", "99999999999999999999d"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        for bad in ["", "KiB", "-1", "+1", "10GB", "1.5MiB", "18446744073709551615KiB"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn short_names_of_topics_are_completed_as_in_pulsar() {
        assert_eq!(topic("orders").unwrap(), "persistent://public/default/orders");
        assert_eq!(topic("acme/eu/orders").unwrap(), "persistent://acme/eu/orders");
        assert_eq!(topic("persistent://acme/eu/a/b").unwrap(), "persistent://acme/eu/a/b");
        for bad in ["", "a/b", "/a/b", "persistent://acme", "non-persistent://a/b/c"] {
            assert!(topic(bad).is_err(), "{bad}");
        }
        let longest = NAME_BYTES_MAX - "persistent://public/default/".len();
        assert_eq!(topic(&"x".repeat(longest)).unwrap().len(), NAME_BYTES_MAX);
        assert!(topic(&"x".repeat(longest + 1)).unwrap_err().contains("at most 1024 bytes"));
    }
}
