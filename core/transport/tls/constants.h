#pragma once
// Numbers of OpenSSL's headers; tls_test.cpp compares them where those are installed.

namespace infinistore {

inline constexpr int kSslErrorWantRead = 2;
inline constexpr int kSslErrorWantWrite = 3;
inline constexpr int kSslErrorZeroReturn = 6;
inline constexpr int kSslFiletypePem = 1;
inline constexpr int kSslVerifyNone = 0;
inline constexpr int kSslVerifyPeer = 1;

inline constexpr int kControlMode = 33;
inline constexpr int kControlReadAhead = 41;
inline constexpr int kControlSessionCache = 44;
inline constexpr int kControlHostName = 55;  // of SNI
inline constexpr int kControlMinVersion = 123;
inline constexpr int kVersion12 = 0x0303;
inline constexpr int kHostNameType = 0;

inline constexpr long kModePartialWrite = 0x1;
inline constexpr long kModeMovingBuffer = 0x2;
inline constexpr long kModeReleaseBuffers = 0x10;

inline constexpr unsigned long kOptionNoCompression = 0x00020000;
inline constexpr unsigned long kOptionNoRenegotiation = 0x40000000;

inline constexpr int kBioTypeSocket = 0x0400 | 0x0100;  // a source and sink, with a descriptor
inline constexpr int kBioFlagRead = 0x01;
inline constexpr int kBioFlagWrite = 0x02;
inline constexpr int kBioFlagRetry = 0x08;
inline constexpr int kBioControlFlush = 11;

inline constexpr long kVerifyOk = 0;
inline constexpr long kVerifyNotYet = 9;
inline constexpr long kVerifyExpired = 10;
inline constexpr long kVerifySelfSigned = 18;
inline constexpr long kVerifySelfSignedInChain = 19;
inline constexpr long kVerifyNoIssuer = 20;
inline constexpr long kVerifyNoIssuerOfLeaf = 21;
inline constexpr long kVerifyWrongHost = 62;
inline constexpr long kVerifyWrongAddress = 64;

}  // namespace infinistore
