use std::{fmt, path::Path, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::json;

use super::{Error, HostPort, JoinFile, Secret, fields::Fields, private, tls};
use crate::ids::StudyId;

const FILE: &str = "head.json";

/// What the head of a study is to its agents: a certificate of its own, and the token that they have to know.
///
/// It stays the same over restarts of the head, so that agents find it again. `Debug` shows nothing of it.
#[derive(Clone)]
pub struct HeadIdentity {
    /// What agents trust. Its key is gone: it has signed one certificate, and signs no more.
    authority: String,
    pub(super) tls: Arc<rustls::ServerConfig>,
    pub(super) token: Secret,
}

/// As in the file.
struct Stored {
    authority: String,
    certificate: String,
    key: String,
    token: Secret,
}

impl HeadIdentity {
    /// That in a folder, which only this user can enter. It is made if there is none, and the folder, too.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        private::make_folder(folder)?;
        let path = folder.join(FILE);
        let stored = if let Some(text) = private::read(&path)? {
            Stored::parse(&path, &text)?
        } else {
            let new = Stored::new()?;
            private::write(&path, &new.text())?;
            new
        };
        stored.identity(&path)
    }

    /// What agents need to know, if the head can be reached at these addresses.
    #[must_use]
    pub fn join_file(&self, study: StudyId, addresses: Vec<HostPort>) -> JoinFile {
        JoinFile { study, addresses, certificate: self.authority.clone(), token: self.token.clone() }
    }

    /// The secret of the workers that this start of the head has: it follows from the token.
    #[must_use]
    pub fn worker_secret(&self, epoch: u64) -> Secret {
        Secret::derive(&self.token, epoch)
    }
}

impl fmt::Debug for HeadIdentity {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("HeadIdentity").finish_non_exhaustive()
    }
}

impl Stored {
    fn new() -> Result<Self, Error> {
        let (authority_key, key) = (KeyPair::generate()?, KeyPair::generate()?);
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        authority.distinguished_name.push(DnType::CommonName, "pollux-tune study");
        let mut head = CertificateParams::new([tls::SERVER_NAME.to_owned()])?;
        head.distinguished_name.push(DnType::CommonName, "pollux-tune head");
        let signed = authority.self_signed(&authority_key)?;
        let certificate = head.signed_by(&key, &Issuer::from_params(&authority, &authority_key))?;
        Ok(Self {
            authority: signed.pem(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            token: Secret::random()?,
        })
    }

    fn text(&self) -> String {
        let Self { authority, certificate, key, token } = self;
        let fields = json!({
            "authority": authority,
            "certificate": certificate,
            "key": key,
            "token": token.reveal(),
        });
        format!("{fields:#}\n")
    }

    fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        let mut fields = Fields::parse(path, text)?;
        let (authority, certificate) = (fields.text("authority")?, fields.text("certificate")?);
        let (key, token) = (fields.text("key")?, fields.text("token")?);
        let token =
            token.parse().map_err(|_| fields.wrong("token", "is not a token of 32 hexadecimal digits"))?;
        fields.end()?;
        Ok(Self { authority, certificate, key, token })
    }

    fn identity(self, path: &Path) -> Result<HeadIdentity, Error> {
        let wrong = |field: &str| Error::FileContents {
            path: path.to_owned(),
            problem: format!("its field `{field}` is not what a head has written there"),
        };
        let certificate =
            CertificateDer::from_pem_slice(self.certificate.as_bytes()).map_err(|_| wrong("certificate"))?;
        CertificateDer::from_pem_slice(self.authority.as_bytes()).map_err(|_| wrong("authority"))?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|_| wrong("key"))?;
        let tls = tls::server(certificate, key).map_err(|_| wrong("key"))?;
        Ok(HeadIdentity { authority: self.authority, tls: Arc::new(tls), token: self.token })
    }
}
