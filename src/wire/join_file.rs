use std::{fmt, path::Path};

use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::json;

use super::{Error, HostPort, Secret, fields::Fields, private};
use crate::ids::StudyId;

/// What an agent has to know of its head: where it is, by which certificate it is recognised, and the token that lets the agent in.
///
/// On disk it is a JSON object that only its user can read. The addresses can be left out of it and given otherwise. `Debug` does not
/// show the token.
#[derive(Clone)]
pub struct JoinFile {
    /// The study.
    pub study: StudyId,
    /// Where its head can be reached; any of them will do.
    pub addresses: Vec<HostPort>,
    pub(super) certificate: String,
    pub(super) token: Secret,
}

impl JoinFile {
    /// Reads a file that nobody else can read.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = private::read(path)?.ok_or_else(|| Error::NoJoinFile { path: path.to_owned() })?;
        Self::parse(path, &text)
    }

    /// Reads what came another way; messages call it by this name.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        let mut fields = Fields::parse(path, text)?;
        let study = fields.text("study")?;
        let study = study.parse().map_err(|_| fields.wrong("study", "is not the id of a study"))?;
        let mut addresses = Vec::new();
        for address in fields.texts("addresses")?.unwrap_or_default() {
            let wrong = |_| fields.wrong("addresses", "has an entry that is not HOST:PORT");
            addresses.push(address.parse().map_err(wrong)?);
        }
        let certificate = fields.text("certificate")?;
        CertificateDer::from_pem_slice(certificate.as_bytes())
            .map_err(|_| fields.wrong("certificate", "is not a certificate in PEM form"))?;
        let token = fields.text("token")?;
        let token =
            token.parse().map_err(|_| fields.wrong("token", "is not a token of 32 hexadecimal digits"))?;
        fields.end()?;
        Ok(Self { study, addresses, certificate, token })
    }

    /// Writes the file, as a whole. Nobody else can read it.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let addresses: Vec<String> = self.addresses.iter().map(HostPort::to_string).collect();
        let fields = json!({
            "study": self.study,
            "addresses": addresses,
            "certificate": self.certificate,
            "token": self.token.reveal(),
        });
        private::write(path, &format!("{fields:#}\n"))
    }

    /// The secret of the workers that a start of the head has: it follows from the token.
    #[must_use]
    pub fn worker_secret(&self, epoch: u64) -> Secret {
        Secret::derive(&self.token, epoch)
    }
}

impl fmt::Debug for JoinFile {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { study, addresses, .. } = self;
        f.debug_struct("JoinFile").field("study", study).field("addresses", addresses).finish_non_exhaustive()
    }
}
