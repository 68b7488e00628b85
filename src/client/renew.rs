//! Renewing a bookie, which is done by this process: nobody else may hold the region.

use std::path::Path;

use georepl::storage::{BookieId, RenewBookieError};
use georepl::{Region, RenewRegionBookieError};

use super::{Found, show, shown};
use crate::cli::Output;
use crate::exit::{Exit, Failure};
use crate::service::words::{Consent, Renewed};

pub(super) async fn run(
    directory: &Path,
    bookie: String,
    consent: Consent,
    output: &Output,
) -> Result<Found, Failure> {
    let check = format!("georepl ledger check --region {}", directory.display());
    if consent == Consent::Missing {
        let message = format!(
            "bookie {bookie} would begin again, empty, and its old file would be refused for ever; see with {check} that \
             other bookies hold copies of all it had, and give --yes if that is meant; if so many are lost that the \
             region does not open, renew just enough of them first, and check then"
        );
        return Err(Failure::new(Exit::Refused, message));
    }
    let renewed = Region::renew_bookie(directory, &BookieId::from(bookie.as_str())).await;
    renewed.map_err(|error| match error {
        RenewRegionBookieError::Bookie(RenewBookieError::FileThere { .. }) => {
            Failure::new(Exit::Refused, error)
        }
        error => Failure::failed(error),
    })?;
    let report = serde_json::to_value(Renewed { bookie, next: check });
    shown(&report.expect("it has only text"), output, show::renewed)
}
