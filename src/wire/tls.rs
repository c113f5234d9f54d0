//! TLS 1.3 between machines. There are no roots but the one in the join file.

use std::{io, sync::Arc};

use rustls::{
    AlertDescription, ClientConfig, Error, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    server::NoServerSessionStorage,
    version::TLS13,
};

/// The name in the certificate of every head: where it is reached does not matter.
pub(super) const SERVER_NAME: &str = "pollux-tune";
const HTTP2: &[u8] = b"h2";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// For a head. No session is resumed: connections last.
pub(super) fn server(
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    config.alpn_protocols = vec![HTTP2.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// For an agent that trusts one certificate.
pub(super) fn client(certificate: &str) -> Result<ClientConfig, Error> {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes())
        .map_err(|error| Error::General(format!("the certificate of the join file: {error}")))?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![HTTP2.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

pub(super) fn server_name() -> ServerName<'static> {
    ServerName::try_from(SERVER_NAME).expect("it is the name of a host")
}

fn cause(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

/// Why a head sends somebody away; none if it has gone by itself.
pub(super) fn refusal(error: &io::Error) -> Option<String> {
    Some(match cause(error)? {
        Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError,
        ) => "it does not trust the certificate of this head: its join file is that of another study, or of an earlier state of the folder `cluster` of this one".to_owned(),
        Error::InvalidMessage(_) => {
            "it does not speak TLS: plain text is not accepted from other machines".to_owned()
        }
        other => format!("no TLS connection could be made: {other}"),
    })
}

/// Whether a server has proved to be somebody else than the head of the join file.
pub(super) fn is_other_head(error: &io::Error) -> bool {
    matches!(cause(error), Some(Error::InvalidCertificate(_)))
}
