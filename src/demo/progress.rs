//! What is shown while the demo runs: bars on a terminal, lines elsewhere. Always on standard
//! error, so that standard output is the report and nothing else.

use std::convert::Infallible;
use std::fmt;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{HumanCount, MultiProgress, ProgressBar, ProgressState, ProgressStyle};

use super::lane::Lane;

/// Clones show on the same terminal.
#[derive(Clone)]
pub(crate) enum Progress {
    Bars {
        all: MultiProgress,
        bars: [ProgressBar; 3],
    },
    Lines,
    #[cfg(test)]
    Hidden,
}

impl Progress {
    pub(crate) fn new(messages: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines;
        }
        let all = MultiProgress::new();
        let style = ProgressStyle::with_template(
            "{prefix:>12} {wide_bar} {human_pos} of {human_len}, {rate}/s",
        )
        .expect("the template is valid")
        .with_key("rate", |state: &ProgressState, out: &mut dyn fmt::Write| {
            // Writing to the bar's own text does not fail.
            let _ = write!(out, "{}", HumanCount(state.per_sec() as u64));
        });
        let bars = NAMES.map(|name| {
            let bar = ProgressBar::new(messages).with_style(style.clone()).with_prefix(name);
            all.add(bar)
        });
        Self::Bars { all, bars }
    }

    pub(crate) fn line(&self, line: &str) {
        match self {
            Self::Bars { all, .. } => {
                // A terminal that went away is no reason to stop.
                let _ = all.println(line);
            }
            Self::Lines => {
                let _ = writeln!(std::io::stderr(), "{line}");
            }
            #[cfg(test)]
            Self::Hidden => {}
        }
    }

    /// Shows how far the lanes are, for ever.
    pub(crate) async fn follow(&self, lanes: &[Lane]) -> Infallible {
        loop {
            let pause = if let Self::Bars { .. } = self { BARS_INTERVAL } else { LINES_INTERVAL };
            tokio::time::sleep(pause).await;
            self.show(lanes);
        }
    }

    /// Shows how far the lanes are.
    pub(crate) fn show(&self, lanes: &[Lane]) {
        let sum = |sum: [u64; 3], lane: &Lane| {
            let progress = lane.progress();
            [0, 1, 2].map(|at| sum[at] + progress[at])
        };
        let progress = lanes.iter().fold([0; 3], sum);
        match self {
            Self::Bars { bars, .. } => {
                bars.iter().zip(progress).for_each(|(bar, at)| bar.set_position(at));
            }
            _ => {
                let [published, replicated, acknowledged] = progress;
                self.line(&format!(
                    "{published} published, {replicated} replicated, {acknowledged} acknowledged"
                ));
            }
        }
    }

    /// Leaves the bars as they are.
    pub(crate) fn finish(&self) {
        if let Self::Bars { bars, .. } = self {
            bars.iter().for_each(ProgressBar::abandon);
        }
    }
}

const NAMES: [&str; 3] = ["published", "replicated", "acknowledged"];
const BARS_INTERVAL: Duration = Duration::from_millis(100);
const LINES_INTERVAL: Duration = Duration::from_secs(2);
